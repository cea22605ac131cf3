"""4P1D: four engines that prefill, one that decodes and smg, by Compose and by Kubernetes."""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import yaml
from vllm.config import KVTransferConfig

from serving.commands.serve_arguments import resolve_arguments
from serving.engine.deployment import resolve_deployment
from tests.deploy.compose.test_compose import FOLDER, interpolated
from tests.deploy.k8s.manifests import broken_restrictions, built, one, validate
from tests.deploy.served_command import end_wall_s_max, served

pytestmark = pytest.mark.process

COMPOSE = FOLDER / "prefill-decode.yaml"
OVERLAY = "k8s/overlays/prefill-decode-engines"
_TRANSFERS = "--kv-transfer-config="


class Engine(NamedTuple):
    """A container's command after `serve`, and its environment."""

    command: list[str]
    environment: dict[str, str]


class Layout(NamedTuple):
    """The router's arguments and the engines, by name; `values` fill in commands."""

    router: list[str]
    engines: dict[str, Engine]
    values: Mapping[str, str]


def of_compose() -> Layout:
    services = yaml.safe_load(interpolated(COMPOSE.read_text(encoding="utf-8")))["services"]
    router = services.pop("router")
    assert {each["network_mode"] for each in services.values()} == {"service:router"}
    engines = {
        name: Engine(command=each["command"], environment=each["environment"])
        for name, each in services.items()
    }
    return Layout(router=router["command"], engines=engines, values={})


def of_kubernetes() -> Layout:
    objects = built(OVERLAY)
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    router, *engines = pod["containers"]
    return Layout(
        router=router["args"],
        engines={
            each["name"]: Engine(
                command=each["args"],
                environment={entry["name"]: entry["value"] for entry in each["env"]},
            )
            for each in engines
        },
        values=one(objects, "ConfigMap")["data"],
    )


@pytest.fixture(params=[of_compose, of_kubernetes])
def layout(request: pytest.FixtureRequest) -> Layout:
    found: Layout = request.param()
    return found


def exchange_of(command: Sequence[str]) -> tuple[list[str], KVTransferConfig]:
    """A command without vLLM's own flag, and what that says."""
    (flag,) = (each for each in command if each.startswith(_TRANSFERS))
    rest = [each for each in command if each != flag]
    return rest, KVTransferConfig(**json.loads(flag.removeprefix(_TRANSFERS)))


def following(arguments: Sequence[str], flag: str) -> list[str]:
    return [value for name, value in itertools.pairwise(arguments) if name == flag]


def test_four_engines_prefill_and_one_decodes_on_chips_of_their_own(layout: Layout) -> None:
    roles, chips, ports = [], [], []
    for engine in layout.engines.values():
        command, exchange = exchange_of(engine.command)
        args = served(command, layout.values)
        settings, weights = resolve_arguments(args, engine.environment)
        deployment = resolve_deployment(settings, weights)
        assert deployment.machine(0.9).kv_tokens_per_rank > 0
        assert exchange.kv_connector == "NixlConnector"
        roles.append(exchange.kv_role)
        first = deployment.partition.first_chip
        chips += range(first, first + deployment.partition.chips)
        ports += [args.port, args.grpc_port, int(engine.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"])]
    assert sorted(roles) == ["kv_consumer", *["kv_producer"] * 4]
    assert sorted(chips) == list(range(20))
    assert len(set(ports)) == len(ports), "they share one loopback"


def test_the_router_knows_each_engine_by_its_role(layout: Layout) -> None:
    by_role: dict[str, list[str]] = {"kv_producer": [], "kv_consumer": []}
    for engine in layout.engines.values():
        command, exchange = exchange_of(engine.command)
        port = served(command, layout.values).grpc_port
        by_role[str(exchange.kv_role)].append(f"grpc://127.0.0.1:{port}")
    assert "--pd-disaggregation" in layout.router
    assert following(layout.router, "--prefill") == by_role["kv_producer"]
    assert following(layout.router, "--decode") == by_role["kv_consumer"]


def test_compose_s_file_is_what_its_specification_allows() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, str(COMPOSE)], check=True, capture_output=True)
    services: dict[str, Any] = yaml.safe_load(interpolated(COMPOSE.read_text()))["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert [services[name].get("ports") for name in services if name != "router"] == [None] * 5
    assert services["router"]["ports"] == ["127.0.0.1:8080:8080"]


def test_kubernetes_objects_are_valid_and_restricted() -> None:
    objects = built(OVERLAY)
    for each in objects:
        validate(each)
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert list(broken_restrictions(pod)) == []
    for engine in of_kubernetes().engines.values():
        args = served(exchange_of(engine.command)[0], of_kubernetes().values)
        assert pod["terminationGracePeriodSeconds"] > end_wall_s_max(args)
