"""The description that clients read, of vLLM's own app: what it says is what is answered."""

import asyncio
import copy
from typing import Any

import pytest

from serving.server.gateway.http.admin_refusal import REFUSED_PATHS
from serving.server.gateway.http.http_access import OPEN_PATHS
from serving.server.gateway.http.open_api import described
from tests.serving.server.gateway.http.served_http import http_server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with http_server() as server:
            answer: dict[str, Any] = (await server.http.get("/openapi.json")).json()
            return answer

    return asyncio.run(ask())


def operations(description: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]


@pytest.mark.slow
def test_what_is_not_served_is_not_described_and_probes_are(served: dict[str, Any]) -> None:
    assert served["info"] == {"title": "UltraServe", "version": "1"}
    assert not set(served["paths"]) & (REFUSED_PATHS | {"/v1/systemone"})
    assert {"/livez", "/readyz", "/startupz", "/v1/completions"} <= set(served["paths"])


@pytest.mark.slow
def test_every_error_that_the_door_gives_is_described_in_the_shape_it_has(
    served: dict[str, Any],
) -> None:
    responses = served["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "404", "408", "413", "429", "503", "504"} <= set(responses)
    every = {code for _, _, one in operations(served) for code in one["responses"]}
    assert not every & {"422", "501"}
    openai_error = {"$ref": "#/components/schemas/OpenAIError"}
    assert responses["429"]["content"]["application/json"]["schema"] == openai_error
    anthropic = served["paths"]["/v1/messages"]["post"]["responses"]["429"]
    reference = anthropic["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/AnthropicErrorResponse"
    assert {"400", "404"} <= set(served["paths"]["/v1/responses/{response_id}"]["get"]["responses"])


def test_every_reference_leads_somewhere(served: dict[str, Any]) -> None:
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.extend([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(served)
    names = {reference.removeprefix("#/components/schemas/") for reference in found}
    assert names <= set(served["components"]["schemas"])
    assert "OpenAIError" in names


def test_keys_are_asked_for_where_they_are_and_described_only_then(served: dict[str, Any]) -> None:
    assert "securitySchemes" not in served["components"]
    before = copy.deepcopy(served)
    with_keys = described(served, version="2", needs_key=True)

    assert served == before
    for path, _, operation in operations(with_keys):
        is_probe = path in OPEN_PATHS | {"/startupz"}
        assert ("security" in operation) == (not is_probe), path
        assert ("401" in operation["responses"]) == (not is_probe), path
