"""schemathesis's requests as drawn, but mostly for the served model.

Hardly any random name is the model's, and the server then checks nothing else.
"""

import os
from typing import Any

import schemathesis

MODEL = os.environ["SERVED_MODEL"]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("model"), str | None):
        kept = sum(str(body.get("model")).encode()) % 8 == 0
        if not kept:
            body["model"] = MODEL
    return body
