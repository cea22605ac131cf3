"""The JSON body of a request for an OpenAI-compatible server. Pure.

`ignore_eos`, token ids as a prompt, `structured_outputs`, `return_token_ids` and `priority` are
vLLM's, each sent only where needed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from loadgen.clients.client import ClientSpec
from loadgen.records.request import Request

PATHS: Final[Mapping[str, str]] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_SCHEMA_NAME: Final = "reply"


def body_maker(spec: ClientSpec) -> Callable[[Request], bytes]:
    """A function from a request to its body; `spec`'s api is completions or chat.

    A request with an output schema ends where the schema is satisfied, so it gets no `ignore_eos`.
    `spec.extra_body` overrides every other field.
    """
    chat = spec.api == "chat"
    encode = msgspec.json.Encoder().encode
    common: dict[str, Any] = {
        "model": spec.model,
        "temperature": spec.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.priority:
        common["priority"] = spec.priority

    def body(request: Request) -> bytes:
        fields: dict[str, Any] = {**common, "max_tokens": request.output_tokens}
        if chat:
            fields["messages"] = [
                {"role": message.role, "content": message.content} for message in request.messages
            ]
        else:
            fields["prompt"] = request.prompt
        if request.output_schema is not None:
            fields |= _schema(request.output_schema, chat=chat)
        elif spec.ignore_eos:
            fields["ignore_eos"] = True
        if request.keep_reply:
            fields["return_token_ids"] = True
        return encode({**fields, **spec.extra_body} if spec.extra_body else fields)

    return body


def _schema(schema: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    if not chat:
        return {"structured_outputs": {"json": schema}}
    named = {"name": _SCHEMA_NAME, "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}
