"""APIs of vLLM's app that the served model cannot answer: 404, where vLLM says 501.

501 says that the server is broken or old; a client that gets it may try again elsewhere. What is
true is that there is nothing at this path.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final

from serving.server.gateway.http.http_errors import HttpError

_DECISIONS: Final = "/v1/systemone"


def missing_paths(state: Any) -> frozenset[str]:
    """The paths that an app with this state cannot answer."""
    has_decisions = getattr(state, "serving_structured_decisions", None) is not None
    return frozenset() if has_decisions else frozenset({_DECISIONS})


def missing_api(path: str, missing: Collection[str]) -> HttpError | None:
    """The answer to a request for one of them; None for another path."""
    if path not in missing:
        return None
    return HttpError(
        status=HTTPStatus.NOT_FOUND,
        code="not_found",
        message=f"the served model does not support {path}",
    )
