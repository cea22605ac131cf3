"""Admission's estimate of an HTTP request's work, from its body.

Needed fields are parsed once. Token ids are counted; text has four characters a token, until the
engine's count replaces it. A malformed body passes: vLLM's app says what is wrong.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from serving.policy.admission.work import (
    CHARACTERS_PER_TOKEN,
    SEQUENCES_MAX,
    UNSAID_NEW_TOKENS,
    Client,
    Work,
    WorkClass,
)
from serving.server.gateway.http.asgi import Scope, header
from serving.server.gateway.http.http_errors import bad_request
from serving.server.gateway.kv_params import KEY as KV_PARAMS
from serving.server.gateway.kv_params import is_prefilled

CLASS_HEADER: Final = b"x-ultraserve-class"

COMPLETION_NEW_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` for /v1/completions, and vLLM's."""

_WITH_CHOICES: Final = frozenset({"/v1/completions", "/v1/chat/completions", "/invocations"})
"""Paths where vLLM makes `n` answers of each prompt; others ignore or refuse `n`, all `best_of`."""

_TOKENS_IN_PATH: Final = "/inference/v1/generate"
"""Path with `n` in `sampling_params`."""

_RESPONSES_PATH: Final = "/v1/responses"

_FLEX: Final = "flex"

_CHARACTER_BYTES: Final = 6
"""Of JSON, at most: \\uXXXX. Characters of two of these are tokens."""

_TEXT_BYTES_MIN: Final = 2**20
"""Free for any text: texts to tokenize need not fit a context (load generators count long ones)."""


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The engine's longest context: its tokens, and a bound of its text in JSON bytes, if known."""

    tokens: int
    text_bytes: int | None = None

    @classmethod
    def of(cls, engine: Any) -> Self:
        """That of vLLM's `engine`; texts are unbounded without a tokenizer, or with images."""
        model, tokenizer = engine.model_config, engine.tokenizer
        if tokenizer is None or model.is_multimodal_model:
            return cls(model.max_model_len)
        characters = model.max_model_len * tokenizer.max_chars_per_token
        return cls(model.max_model_len, max(characters * _CHARACTER_BYTES, _TEXT_BYTES_MIN))


class _Sampling(msgspec.Struct):
    max_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    extra_args: msgspec.Raw = msgspec.Raw()


class AskedBody(msgspec.Struct):
    """Fields of any API's body that are read; empty where absent."""

    prompt: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    state: msgspec.Raw = msgspec.Raw()
    questions: msgspec.Raw = msgspec.Raw()
    query: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    max_output_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    background: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_TEXTS: Final = (
    "suffix",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "state",
    "questions",
    "query",
    "items",
)
_LONG_TEXTS: Final = ("prompt", "messages", "input", "instructions", "system")
"""Fields that become a prompt whole."""

_NO_NUMBERS: Final = (b"[", b'"', b"{", b"l", b"r", b"s")
"""Marks of values other than numbers: arrays, strings, objects, null, true and false."""

_DECODER: Final = msgspec.json.Decoder(AskedBody)


def asked_in(body: bytes) -> AskedBody | None:
    """The fields of a body; None for one that is no JSON object."""
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def said_class(scope: Scope) -> WorkClass | None:
    """The class in the request's header, if any; raises HttpRefused for another word."""
    word = header(scope, CLASS_HEADER)
    if word is None:
        return None
    try:
        return WorkClass(word.strip().lower())
    except ValueError:
        name = CLASS_HEADER.decode()
        message = f"{name} is {' or '.join(WorkClass)}, not {word[:40]!r}"
        raise bad_request("unknown_class", message, param=name) from None


def refuse_background(path: str, asked: AskedBody | None) -> None:
    """Raise HttpRefused for a response made after its request, which no permit would count.

    vLLM offers it where it keeps responses (VLLM_ENABLE_RESPONSES_API_STORE).
    """
    if path != _RESPONSES_PATH or asked is None:
        return
    if bytes(asked.background) in (b"", b"null", b"false"):
        return
    message = "background: expected false; here a response is made while its client waits"
    raise bad_request("not_offered", message, param="background")


def refuse_kv_params(asked: AskedBody | None) -> None:
    """Raise HttpRefused for a client's own `kv_transfer_params`, which an engine would follow to
    any address.
    """
    if asked is None:
        return
    sampling = _typed(asked.sampling_params, _Sampling) or _Sampling()
    extra = _typed(sampling.extra_args, dict[str, msgspec.Raw]) or {}
    for field, raw in (
        (KV_PARAMS, asked.kv_transfer_params),
        (f"sampling_params.extra_args.{KV_PARAMS}", extra.get(KV_PARAMS, b"")),
    ):
        if bytes(raw) not in (b"", b"null"):
            message = f"{field}: expected none; this service's router sets it"
            raise bad_request("not_offered", message, param=field)


def refuse_long_text(asked: AskedBody | None, context: ContextSize) -> None:
    """Raise HttpRefused for text longer than any context's.

    The engine would first read or tokenize all of it.
    """
    if asked is None or context.text_bytes is None:
        return
    for field in _LONG_TEXTS:
        raw = memoryview(getattr(asked, field))
        if len(raw) <= context.text_bytes:
            continue
        size_bytes = len(raw) if raw[0] == ord('"') else _longest_text_bytes(bytes(raw))
        if size_bytes > context.text_bytes:
            message = (
                f"{field}: expected at most {context.text_bytes:,} bytes, as no text "
                f"of {context.tokens:,} tokens has more; got {size_bytes:,}"
            )
            raise bad_request("context_length_exceeded", message, param=field)


def _longest_text_bytes(array: bytes) -> int:
    """Bytes of the longest of texts or lists, of all messages; 0 for token ids."""
    if b'"' not in array:
        return 0
    try:
        if array[1:].lstrip().startswith(b"["):
            lists = msgspec.json.decode(array, type=list[msgspec.Raw])
            return max(len(memoryview(one)) for one in lists)
        texts = msgspec.json.decode(array, type=list[str])  # ends at the first that is none
        return max(map(len, texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return len(array)


def work_of(
    path: str,
    asked: AskedBody | None,
    *,
    client: Client,
    said: WorkClass | None,
    context: ContextSize,
    hears_kv: bool = False,
) -> Work:
    """The work that a body `asked`, sent to `path`, asks for.

    `said` is the header's class. The engine refuses sequences of more tokens than `context`, and
    gets KV from others if it `hears_kv`.
    """
    asked = asked or AskedBody()
    sampling = _typed(asked.sampling_params, _Sampling) or _Sampling()
    prompts, prompt_tokens = _prompts(asked)
    if path.endswith("/chat/completions/batch"):
        prompts = max(1, len(_typed(asked.messages, list[msgspec.Raw]) or ()))
    sequences = min(prompts * _choices(path, asked, sampling), SEQUENCES_MAX)
    new_tokens = _new_tokens(path, asked, sampling)
    return Work(
        client=client,
        work_class=client.class_of(said or _body_class(asked)),
        sequences=sequences,
        prompt_tokens=min(prompt_tokens, prompts * context.tokens),
        new_tokens_max=sequences * min(new_tokens, context.tokens),
        is_prefilled=hears_kv and is_prefilled(bytes(asked.kv_transfer_params)),
    )


def _choices(path: str, asked: AskedBody, sampling: _Sampling) -> int:
    if path == _TOKENS_IN_PATH:
        return max(1, _count(sampling.n))
    return max(1, _count(asked.n)) if path in _WITH_CHOICES else 1


def _body_class(asked: AskedBody) -> WorkClass | None:
    flex = _typed(asked.service_tier, str) == _FLEX
    return WorkClass.BATCH if flex or _count(asked.priority) else None


def _new_tokens(path: str, asked: AskedBody, sampling: _Sampling) -> int:
    said = (
        asked.max_completion_tokens,
        asked.max_tokens,
        asked.max_output_tokens,
        sampling.max_tokens,
    )
    for raw in said:
        if count := _count(raw):
            return count
    return COMPLETION_NEW_TOKENS if path == "/v1/completions" else UNSAID_NEW_TOKENS


def _prompts(asked: AskedBody) -> tuple[int, int]:
    """Number of prompts, and tokens of all; at least one each."""
    characters = sum(len(getattr(asked, name)) for name in _TEXTS)
    tokens = -(-characters // CHARACTERS_PER_TOKEN)
    for flat in (_numbers(asked.token_ids), _numbers(asked.prompt)):
        if flat is not None:
            return 1, tokens + max(1, flat)
    prompt = _typed(asked.prompt, str | list[Any])
    if prompt is None:
        return 1, max(1, tokens)
    if isinstance(prompt, str):
        return 1, tokens + _text_tokens(prompt)
    each = [_text_tokens(one) if isinstance(one, str) else _length(one) for one in prompt]
    return len(prompt), tokens + sum(each)


def _numbers(raw: msgspec.Raw) -> int | None:
    """Length of a JSON array of numbers alone, by its commas, for speed; None for other JSON."""
    text = bytes(raw)
    if not text.startswith(b"[") or any(text.find(mark, 1) >= 0 for mark in _NO_NUMBERS):
        return None
    return text.count(b",") + 1 if text[1:-1].strip() else 0


def _text_tokens(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def _length(one: object) -> int:
    return max(1, len(one)) if isinstance(one, list) else 1


def _count(raw: msgspec.Raw) -> int:
    """A whole number above zero, also as "60" or 60.0, like vLLM's app; else zero."""
    if not raw:
        return 0
    try:
        return max(0, msgspec.json.decode(raw, type=int, strict=False))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def _typed(raw: msgspec.Raw, kind: Any) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
