"""Facts of an OpenAI-compatible server asked before a run: its models."""

from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from loadgen.clients.question import ask
from loadgen.clients.server_json import TokenCount, short_line
from loadgen.errors import ServerError


class _Model(msgspec.Struct):
    id: str
    max_model_len: TokenCount | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_DECODER: Final = msgspec.json.Decoder(_Models)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model's name, and its context in tokens if the server tells."""

    name: str
    context_tokens: int | None


async def served_model(session: aiohttp.ClientSession, url: str, wanted: str | None) -> ServedModel:
    """Return the model called `wanted`, or the server's first; raises ServerError without one."""
    address = f"{url.rstrip('/')}/v1/models"
    models = await ask(session, address, _DECODER)
    if not models.data:
        raise ServerError(url=address, reason="the server lists no model")
    found = [model for model in models.data if wanted in (None, model.id)]
    if not found:
        names = short_line(", ".join(model.id for model in models.data))
        raise ServerError(url=address, reason=f"no model {wanted!r}; the server has {names}")
    if not found[0].id.isprintable():  # it goes into every request and every report
        reason = f"the model's name {short_line(found[0].id)!r} has control characters in it"
        raise ServerError(url=address, reason=reason)
    return ServedModel(name=found[0].id, context_tokens=found[0].max_model_len)
