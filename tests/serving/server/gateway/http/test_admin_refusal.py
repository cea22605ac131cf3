"""vLLM's administration is not served with inference: all of it, and its words lead somewhere."""

import re

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from vllm.entrypoints.rl.factories import register_rl_api_routers
from vllm.entrypoints.serve import register_vllm_dev_api_routers
from vllm.entrypoints.serve.fault_tolerance.api_router import router as fault_tolerance
from vllm.entrypoints.serve.lora.api_router import router as lora
from vllm.entrypoints.serve.profile.api_router import router as profile

from protos.ultraserve.v1 import control_pb2
from serving.main import command_parser
from serving.server.gateway.http.admin_refusal import REFUSED_PATHS, refusal_of


def paths_of(app: FastAPI) -> set[str]:
    return {route.path for route in app.routes if isinstance(route, APIRoute)}


def test_every_path_of_vllm_s_development_mode_is_refused() -> None:
    app = FastAPI()
    register_vllm_dev_api_routers(app)
    register_rl_api_routers(app)
    for router in (fault_tolerance, lora, profile):
        app.include_router(router)

    assert len(paths_of(app)) > 20
    assert paths_of(app) - REFUSED_PATHS == set()


@pytest.mark.parametrize("path", sorted(REFUSED_PATHS))
def test_a_refusal_is_one_line_that_names_what_there_is(path: str) -> None:
    error = refusal_of(path)
    assert error is not None
    assert error.status == 403
    assert "\n" not in error.message
    methods = {
        method.name for method in control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods
    }
    named = re.findall(
        r"(?:or|use) ([A-Z]\w+)(?: and ([A-Z]\w+))? of the control service", error.message
    )
    assert {name for pair in named for name in pair if name} <= methods
    commands = re.findall(r"`ultraserve (\w+)", error.message)
    for name in commands:
        assert f"\n    {name} " in command_parser().format_help()
    assert bool(named) != error.message.endswith("not offered by this server")


def test_a_refusal_promises_nothing_that_is_not_there() -> None:
    for path in ("/v1/load_lora_adapter", "/collective_rpc", "/reset_mm_cache"):
        refused = refusal_of(path)
        assert refused is not None
        assert refused.message == f"{path} is not offered by this server"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/sleepy", "/v1/sleep"])
def test_everything_else_is_not_refused(path: str) -> None:
    assert refusal_of(path) is None
