"""Validates a GenerateRequest and estimates its work. Pure, before an engine.

Binary messages can hold values that vLLM's HTTP app never lets through, such as a NaN temperature
or media in shared memory. These are refused by field.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.message import Message
from smg_grpc_proto import vllm_engine_pb2 as pb  # type: ignore[import-untyped]

from serving.policy.admission.work import (
    CHARACTERS_PER_TOKEN,
    SEQUENCES_MAX,
    UNSAID_NEW_TOKENS,
    Client,
    Work,
    WorkClass,
)
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure
from serving.server.gateway.kv_params import is_prefilled

CLASS_METADATA: Final = "x-ultraserve-class"

PROMPT_TOO_LONG: Final = "PROMPT_TOO_LONG"
INVALID_FIELD: Final = "INVALID_FIELD"

_ID_LETTERS_MAX: Final = 256

_IDS_OF_ABORT_MAX: Final = 1_024

_FLOATS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)

_NOT_HERE: Final[Mapping[str, str]] = {
    "mm_inputs": "tokens or text: this engine reads no media",
    "extra_mm_inputs": "tokens or text: this engine reads no media",
    "media_refs": "tokens or text: this engine reads no media",
    "kv_transfer_params": "nothing: it is of connectors that do not go here",
}

_NO_EXCHANGE: Final = "nothing: this engine exchanges no KV, having no --kv-transfer-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A valid GenerateRequest under the engine's name for it, and its work."""

    message: Any
    engine_id: str
    work: Work


def asked_of(
    message: Any,
    client: Client,
    work_class: WorkClass,
    *,
    context_tokens: int,
    exchanges_kv: bool = False,
) -> Asked:
    """Check a GenerateRequest of `client`; raises CallRefused, INVALID_ARGUMENT.

    `context_tokens` bounds prompt and answer together; `exchanges_kv`: the engine does so with
    others. `message` is changed: its id becomes the
    engine's, by which no other client's request can be named.
    """
    _refuse_id(message.request_id)
    present = {descriptor.name for descriptor, _ in message.ListFields()}
    for name, expected in _NOT_HERE.items():
        if name in present:
            raise _wrong(name, expected)
    if not exchanges_kv and "kv_transfer_params_json" in present:
        raise _wrong("kv_transfer_params_json", _NO_EXCHANGE)
    _refuse_numbers(message.sampling_params)
    prompt_tokens = _prompt_tokens(message, context_tokens)
    sequences = max(1, message.sampling_params.n)
    message.request_id = engine_id(client, message.request_id)
    work = Work(
        client=client,
        work_class=work_class,
        sequences=sequences,
        prompt_tokens=prompt_tokens,
        new_tokens_max=sequences * _new_tokens(message, prompt_tokens, context_tokens),
        is_prefilled=exchanges_kv and is_prefilled(message.kv_transfer_params_json),
    )
    return Asked(message=message, engine_id=message.request_id, work=work)


def engine_id(client: Client, request_id: str) -> str:
    """The engine's name for a client's request, unique over gRPC and HTTP."""
    return f"grpc:{quote(client.name, safe='')}:{request_id}"


def aborted_ids(message: Any, client: Client) -> list[str]:
    """The engine's names of the client's requests in an AbortRequest; raises CallRefused."""
    if len(message.request_ids) > _IDS_OF_ABORT_MAX:
        raise _wrong("request_ids", f"at most {_IDS_OF_ABORT_MAX}, not {len(message.request_ids)}")
    return [engine_id(client, request_id) for request_id in message.request_ids]


def work_class_of(said: str | None, client: Client) -> WorkClass:
    """The class in a call's metadata, else its client's; raises CallRefused."""
    if said is None:
        return client.work_class
    try:
        return client.class_of(WorkClass(said))
    except ValueError:
        raise _wrong(CLASS_METADATA, f"one of {', '.join(WorkClass)}") from None


def _refuse_id(request_id: str) -> None:
    """Raise CallRefused for an id that is empty, too long, or would break lines in logs."""
    if not request_id or len(request_id) > _ID_LETTERS_MAX or not request_id.isprintable():
        raise _wrong("request_id", f"1 to {_ID_LETTERS_MAX} printable letters")


def _wrong(
    field: str, expected: str, *, reason: str = INVALID_FIELD, **figures: int
) -> CallRefused:
    return CallRefused(
        RpcFailure(
            grpc.StatusCode.INVALID_ARGUMENT,
            reason,
            f"{field}: expected {expected}",
            field=field,
            metadata={name: str(value) for name, value in figures.items()},
        )
    )


def _prompt_tokens(message: Any, context_tokens: int) -> int:
    kind = message.WhichOneof("input")
    if kind == "tokenized":
        field, tokens = "tokenized.input_ids", len(message.tokenized.input_ids)
        if not tokens:
            raise _wrong(field, "at least one token")
        if tokens >= context_tokens:  # which leaves none for an answer
            raise _wrong(
                field,
                f"fewer than {context_tokens} tokens, the model's context, not {tokens}",
                reason=PROMPT_TOO_LONG,
                prompt_tokens=tokens,
                context_tokens=context_tokens,
            )
        return tokens
    if kind == "text" and message.text:
        return min(1 + len(message.text) // CHARACTERS_PER_TOKEN, context_tokens)
    raise _wrong("input", "tokenized or a text")


def _new_tokens(message: Any, prompt_tokens: int, context_tokens: int) -> int:
    params = message.sampling_params
    said = params.max_tokens if params.HasField("max_tokens") else UNSAID_NEW_TOKENS
    return max(1, min(said, context_tokens - prompt_tokens))


def _refuse_numbers(params: Any) -> None:
    if params.n > SEQUENCES_MAX:
        raise _wrong("sampling_params.n", f"at most {SEQUENCES_MAX}")
    for field, value in _floats(params):
        if not math.isfinite(value):
            raise _wrong(field, f"a finite number, not {value}")


def _floats(params: Message) -> Iterator[tuple[str, float]]:
    for name in _FLOATS:
        yield f"sampling_params.{name}", getattr(params, name)
    bias: Mapping[int, float] = params.logit_bias  # type: ignore[attr-defined]
    for token, value in bias.items():
        yield f"sampling_params.logit_bias[{token}]", value


SAMPLING_FIELDS: Final = frozenset(pb.SamplingParams.DESCRIPTOR.fields_by_name)
"""Names of a request's sampling fields."""
