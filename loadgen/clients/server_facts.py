"""Facts of an OpenAI-compatible server asked before a run: its models."""

from typing import Final

import aiohttp
import msgspec

from loadgen.clients.question import ask
from loadgen.clients.server_json import TokenCount, short_line
from loadgen.errors import ServerError


class ServedModel(
    msgspec.Struct, frozen=True, rename={"name": "id", "context_tokens": "max_model_len"}
):
    """A model's name, and its context in tokens if the server tells."""

    name: str
    context_tokens: TokenCount | None = None


class _Models(msgspec.Struct):
    data: list[ServedModel]


_DECODER: Final = msgspec.json.Decoder(_Models)


async def served_model(session: aiohttp.ClientSession, url: str, wanted: str | None) -> ServedModel:
    """Return the model called `wanted`, or the server's first; raises ServerError without one."""
    address = f"{url.rstrip('/')}/v1/models"
    models = await ask(session, address, _DECODER)
    if not models.data:
        raise ServerError(url=address, reason="the server lists no model")
    found = [model for model in models.data if wanted in (None, model.name)]
    if not found:
        names = short_line(", ".join(model.name for model in models.data))
        raise ServerError(url=address, reason=f"no model {wanted!r}; the server has {names}")
    if not found[0].name.isprintable():  # it goes into every request and every report
        reason = f"the model's name {short_line(found[0].name)!r} has control characters in it"
        raise ServerError(url=address, reason=reason)
    return found[0]
