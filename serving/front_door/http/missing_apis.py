"""APIs of vLLM's app that the served model cannot answer: 404, where vLLM says 501.

501 says that the server is broken or old; a client that gets it may try again elsewhere. What is
true is that there is nothing at this path.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final

from serving.front_door.http.http_errors import HttpError

_HANDLERS: Final = {"/v1/systemone": "serving_structured_decisions"}
"""Path -> where vLLM's app keeps what answers it, None for a model that cannot."""


def missing_paths(state: Any) -> frozenset[str]:
    """The paths that an app with this state cannot answer."""
    return frozenset(
        path for path, handler in _HANDLERS.items() if getattr(state, handler, None) is None
    )


def missing_api(path: str, missing: Collection[str]) -> HttpError | None:
    """The answer to a request for one of them; None for another path."""
    if path not in missing:
        return None
    return HttpError(
        status=HTTPStatus.NOT_FOUND,
        code="not_found",
        message=f"the served model does not support {path}",
    )
