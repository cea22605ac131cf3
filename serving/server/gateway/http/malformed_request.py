"""A request that vLLM's app stumbles over while it reads it: 400, where its framework says 500.

The app checks most of what clients send, and trips over the rest: an assertion about a part of a
message, an index into an empty list. Nothing of the engine is involved, the same request will trip
again, and 500 would have clients try again. So the answer is the client's error, and the place goes
to the log, where whoever mends it finds it.
"""

import logging
import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Final

from serving.server.gateway.http.http_errors import HttpError

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

STUMBLES: Final = (AssertionError, AttributeError, LookupError, RecursionError, UnicodeError)
"""What reading a request of a strange shape raises; vLLM answers other errors itself."""


def stumbled(error: Exception, path: str) -> HttpError:
    """The answer to a request to `path` over which reading failed with `error`, which is logged."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"
    logger.warning("a request to %s could not be read: %s at %s", path, type(error).__name__, place)
    return HttpError(
        status=HTTPStatus.BAD_REQUEST,
        code="malformed_request",
        message="the request has a shape that cannot be read",
    )
