"""How much work an HTTP request asks for, as far as its body says: admission's estimate.

Only what is needed is parsed. Token ids are counted exactly; of text a token is taken to be four
characters ("~4 characters in English", https://platform.openai.com/tokenizer), and the engine's own
count takes its place as soon as there is one. A body that is malformed is a request like any other:
vLLM's app says what is wrong with it.
"""

from http import HTTPStatus
from typing import Any, Final

import msgspec

from serving.admission.work import Client, Work, WorkClass
from serving.front_door.http.asgi import Scope, header
from serving.front_door.http.http_errors import HttpError, HttpRefused

CLASS_HEADER: Final = b"x-ultraserve-class"

CHARACTERS_PER_TOKEN: Final = 4

UNSAID_NEW_TOKENS: Final = 1024
"""Of an answer whose request says nothing about its length; assumed, until the engine knows: the
whole context would keep chats without a limit out of every budget."""

COMPLETION_NEW_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` for /v1/completions, and vLLM's."""

SEQUENCES_MAX: Final = 16_384
"""Of one request: vLLM refuses a larger `n` (VLLM_MAX_N_SEQUENCES)."""

_FLEX: Final = "flex"


class _Sampling(msgspec.Struct):
    """`sampling_params` of /inference/v1/generate."""

    max_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    """What of a body of any API is looked at; a raw field is empty where the body has none."""

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
    best_of: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()


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
_DECODER: Final = msgspec.json.Decoder(_Body)


def said_class(scope: Scope) -> WorkClass | None:
    """The class that the request's header names; None without the header.

    Raises HttpRefused for another word.
    """
    word = header(scope, CLASS_HEADER)
    if word is None:
        return None
    try:
        return WorkClass(word.strip().lower())
    except ValueError:
        error = HttpError(
            status=HTTPStatus.BAD_REQUEST,
            code="unknown_class",
            message=f"{CLASS_HEADER.decode()} is {' or '.join(WorkClass)}, not {word[:40]!r}",
            param=CLASS_HEADER.decode(),
        )
        raise HttpRefused(error) from None


def work_of(
    path: str,
    body: bytes,
    *,
    client: Client,
    said: WorkClass | None,
    context_tokens_max: int,
) -> Work:
    """The work that `body`, sent to `path`, asks for.

    `said` is the class that the request's header names. Tokens of a sequence are at most
    `context_tokens_max`, the engine's longest context: it refuses more.
    """
    try:
        asked = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        asked = _Body()
    sampling = _typed(asked.sampling_params, _Sampling) or _Sampling()
    prompts, prompt_tokens = _prompts(asked)
    if path.endswith("/chat/completions/batch"):
        prompts = max(1, len(_typed(asked.messages, list[msgspec.Raw]) or ()))
    choices = max(_count(asked.n), _count(asked.best_of), _count(sampling.n), 1)
    sequences = min(prompts * choices, SEQUENCES_MAX)
    new_tokens = _new_tokens(path, asked, sampling)
    return Work(
        client=client,
        work_class=client.class_of(said or _body_class(asked)),
        sequences=sequences,
        prompt_tokens=min(prompt_tokens, prompts * context_tokens_max),
        new_tokens_max=sequences * min(new_tokens, context_tokens_max),
    )


def _body_class(asked: _Body) -> WorkClass | None:
    flex = _typed(asked.service_tier, str) == _FLEX
    return WorkClass.BATCH if flex or _count(asked.priority) else None


def _new_tokens(path: str, asked: _Body, sampling: _Sampling) -> int:
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


def _prompts(asked: _Body) -> tuple[int, int]:
    """How many prompts there are, and the tokens of all of them together; at least one each."""
    characters = sum(len(bytes(getattr(asked, name))) for name in _TEXTS)
    tokens = -(-characters // CHARACTERS_PER_TOKEN)
    ids = _typed(asked.token_ids, list[int])
    if ids is not None:
        return 1, tokens + max(1, len(ids))
    prompt = _typed(asked.prompt, str | list[Any])
    if prompt is None:
        return 1, max(1, tokens)
    if isinstance(prompt, str):
        return 1, tokens + _text_tokens(prompt)
    if not prompt or isinstance(prompt[0], int):
        return 1, tokens + max(1, len(prompt))
    each = [_text_tokens(one) if isinstance(one, str) else _length(one) for one in prompt]
    return len(prompt), tokens + sum(each)


def _text_tokens(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def _length(one: object) -> int:
    return max(1, len(one)) if isinstance(one, list) else 1


def _count(raw: msgspec.Raw) -> int:
    """A whole number above zero; zero for whatever else is there."""
    return max(0, _typed(raw, int) or 0)


def _typed(raw: msgspec.Raw, kind: Any) -> Any:
    """The value, None where there is none or one of another type."""
    if not bytes(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
