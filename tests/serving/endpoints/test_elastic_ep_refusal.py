"""What of vLLM's HTTP surface is refused at the door, in an app with the hook around it."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from serving.endpoints.control_hook import ControlHook


def answered(path: str, *, root: str = "") -> httpx.Response:
    app = FastAPI()

    @app.post("/{anything}")
    def reached(anything: str) -> str:
        return anything

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=ControlHook(app), root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(path, json={"new_data_parallel_size": 2})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "root"),
    [("/scale_elastic_ep", ""), ("/scale_elastic_ep/", ""), ("/api/scale_elastic_ep", "/api")],
)
def test_scaling_is_answered_as_vllm_answers_what_it_does_not_do(path: str, root: str) -> None:
    answer = answered(path, root=root)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "`ultraserve drain`" in error["message"]


@pytest.mark.parametrize("path", ["/is_scaling_elastic_ep", "/scale"])
def test_everything_else_reaches_the_app(path: str) -> None:
    answer = answered(path)
    assert (answer.status_code, answer.json()) == (200, path[1:])
