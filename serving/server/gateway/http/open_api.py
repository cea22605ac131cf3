"""Makes the OpenAPI description of vLLM's app match this server's answers.

Adds the gateway's answers, probes and keys, and the real shape of errors (a validation error is
400, never FastAPI's 422); removes paths that are not served.
"""

from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, Final

from serving.server.gateway.http import probes
from serving.server.gateway.http.admin_refusal import REFUSED_PATHS
from serving.server.gateway.http.http_access import OPEN_PATHS
from serving.server.gateway.http.http_errors import ANTHROPIC_PATHS
from serving.server.gateway.http.http_gateway import generates
from serving.server.gateway.http.http_refusals import missing_paths
from serving.server.gateway.http.model_card import LIST_PATH

TITLE: Final = "UltraServe"

ERROR_NAME: Final = "OpenAIError"
_ERROR_REF: Final = {"$ref": f"#/components/schemas/{ERROR_NAME}"}
_ANTHROPIC_REF: Final = {"$ref": "#/components/schemas/AnthropicErrorResponse"}

ERROR_SCHEMA: Final = {
    "title": ERROR_NAME,
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                # vLLM's own errors repeat the status here; the gateway's have a word.
                "code": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
            },
        }
    },
}

_WITH_BODY: Final = (400, 404, 408, 413, 503)
_GENERATING: Final = (429, 504)
_WITH_KEYS: Final = (401, 403)

_NEVER: Final = (422, 501)
"""Described by vLLM and never sent: validation errors are 400, media are refused before they are
read (422), and an API that the served model lacks (501) is 404."""

_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def described(
    description: Mapping[str, Any], *, version: str, needs_key: bool, missing: Collection[str] = ()
) -> dict[str, Any]:
    """The description of vLLM's app with this server's answers; `description` is left as it is.

    `version` is this server's; `missing` are paths whose API the served model lacks.
    """
    components = dict(description.get("components", {}))
    components["schemas"] = {**components.get("schemas", {}), ERROR_NAME: ERROR_SCHEMA}
    if needs_key:
        components["securitySchemes"] = _SECURITY
    paths = {
        path: {
            method: _operation(path, method, operation, needs_key=needs_key)
            for method, operation in operations.items()
        }
        for path, operations in description["paths"].items()
        if path not in REFUSED_PATHS and path not in missing
    }
    return {
        **description,
        "info": {**description["info"], "title": TITLE, "version": version},
        "paths": {
            **paths,
            f"{LIST_PATH}/{{model}}": {"get": _model_card(needs_key=needs_key)},
            **{path: {"get": _probe(path)} for path in probes.PATHS},
        },
        "components": components,
    }


def describe_app(app: Any, *, version: str, needs_key: bool) -> None:
    """Have the FastAPI `app` serve its own description as `described`."""
    own: Callable[[], dict[str, Any]] = app.openapi
    missing = missing_paths(app.state)
    made: list[dict[str, Any]] = []

    def openapi() -> dict[str, Any]:
        if not made:
            made.append(described(own(), version=version, needs_key=needs_key, missing=missing))
        return made[0]

    app.openapi = openapi


def _operation(
    path: str, method: str, operation: Mapping[str, Any], *, needs_key: bool
) -> dict[str, Any]:
    error = _ANTHROPIC_REF if path.startswith(ANTHROPIC_PATHS) else _ERROR_REF
    is_open = path in OPEN_PATHS
    codes: set[int] = {int(code) for code in operation["responses"] if int(code) >= 400}
    if method == "post":
        codes.update(_WITH_BODY)
        if generates("POST", path):
            codes.update(_GENERATING)
    if "{" in path or operation.get("parameters"):
        codes.update((400, 404))
    if needs_key and not is_open:
        codes.update(_WITH_KEYS)
    codes.difference_update(_NEVER)
    if path in {"/health", "/ping"}:
        codes.add(503)
    responses = {code: answer for code, answer in operation["responses"].items() if int(code) < 400}
    for code in sorted(codes):
        answer: dict[str, Any] = {"description": HTTPStatus(code).phrase}
        if not is_open:
            answer["content"] = {"application/json": {"schema": error}}
        responses[str(code)] = answer
    changed = {**operation, "responses": responses}
    if needs_key and not is_open:
        changed["security"] = [{name: []} for name in _SECURITY]
    return changed


def _model_card(*, needs_key: bool) -> dict[str, Any]:
    path = f"{LIST_PATH}/{{model}}"
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    card = {"application/json": {"schema": {"type": "object"}}}
    operation = {
        "summary": "Retrieve Model",
        "operationId": "retrieve_model",
        "parameters": [name],
        "responses": {"200": {"description": "OK", "content": card}},
    }
    return _operation(path, "get", operation, needs_key=needs_key)


def _probe(path: str) -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    responses = {"200": {"description": "OK", "content": text}}
    if path != probes.STARTUP:
        responses["503"] = {"description": "The reason, in one line", "content": text}
    return {"summary": path[1:].capitalize(), "operationId": path[1:], "responses": responses}
