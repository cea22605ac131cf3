"""Admission of every generation: each call of `engine.generate` has a permit.

vLLM's HTTP app and gRPC service both call it, on one AsyncLLM, which is wrapped once: it declares
the real work, batch work awaits its turn, the class of work is the scheduler's priority, and the
permit follows each sequence by `serving.plugin.request_watch`. A call without a permit enters as
anonymous interactive work or is refused.

All prompts of a request are declared before any runs: vLLM makes all generators, then reads them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from serving.plugin.beam_searches import declare_beams, is_declared, prompt_tokens_of
from serving.plugin.request_watch import RequestWatch
from serving.plugin.requests import RefusedRequest, TooManyPromptLogprobs
from serving.plugin.stat_logger import stat_logger_of
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import PRIORITY, UNSAID_NEW_TOKENS, Client, Work, WorkClass
from serving.server.gateway.admission_controller import Permit, RequestAdmission, current_permit
from serving.server.gateway.grammar_weight import GrammarLimits

_generation: ContextVar["_Generation | None"] = ContextVar("ultraserve_generation", default=None)

PROMPT_LOGPROBS_MAX: Final = 2**13
"""Prompt log-probabilities of one request with a key; without keys there is no other client. vLLM
makes an object and text of each in the server's loop, 20 us each: 84,000 blocked all others for 1.5
s and more. A prompt of 4,096 tokens with one alternative at each has as many."""

_MARK: Final = "goes_by_present"

_Generate = Callable[..., AsyncGenerator[Any, None]]


class _Generation:
    """One call of `generate`, and its running sequences: tokens by vLLM's names.

    `batch_ended` is called for each sequence of batch work that the engine ends.
    """

    __slots__ = ("_batch_ended", "_made_tokens", "_permit", "_watch")

    def __init__(
        self, permit: Permit, watch: RequestWatch, batch_ended: Callable[[], None]
    ) -> None:
        self._permit = permit
        self._watch = watch
        self._batch_ended = batch_ended
        self._made_tokens: dict[str, int] = {}

    def begin(self, name: str, counted: Counted) -> None:
        self._made_tokens[name] = 0
        self._permit.begin(counted)

    def made(self, name: str, tokens: int) -> None:
        if not self._made_tokens[name]:
            self._permit.first_token()
        self._made_tokens[name] += tokens
        self._permit.made(tokens)

    def ended(self, name: str, *, by_itself: bool, cut: Outcome | None) -> None:
        if self._permit.work.work_class is WorkClass.BATCH:
            self._batch_ended()
        if cut is not None:
            self._permit.cut(cut)
        made_tokens = self._made_tokens.pop(name)
        self._permit.end(made_tokens=made_tokens, by_itself=by_itself)

    def end(self) -> None:
        """Count unfinished sequences as aborted; idempotent."""
        for name in list(self._made_tokens):
            if self._watch.forget(name):
                self._permit.cut(Outcome.ABORTED)
            self._permit.end(made_tokens=self._made_tokens.pop(name), by_itself=False)


def admit_generation(engine: Any, admission: RequestAdmission) -> None:
    """Put admission control before vLLM's AsyncLLM.generate; idempotent."""
    if hasattr(engine.check_admission, _MARK):
        return
    watch = RequestWatch(engine, _generation.get, admission.look_soon)
    watch.install()
    _guard_preflight(engine, admission)
    declare_beams(_declare)
    engine.generate = _declared(_admitted(engine, admission, watch), engine, admission)


def _admitted(engine: Any, admission: RequestAdmission, watch: RequestWatch) -> _Generate:
    generate: _Generate = engine.generate
    sets_priority = engine.vllm_config.scheduler_config.policy == "priority"
    context_tokens = engine.vllm_config.model_config.max_model_len
    stats = stat_logger_of(engine)

    def batch_ended(request_id: str) -> None:
        if stats is not None:
            stats.batch_ended(request_id)

    async def admitted(
        prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        permit, own = current_permit.get(), None
        try:
            if permit is None or permit.has_left:
                permit = own = await admission.admit(_work(prompt, sampling_params, context_tokens))
            await permit.turn()
        except Refused as refused:
            raise RefusedRequest(refused) from None
        if sets_priority:
            kwargs["priority"] = _priority(permit.work.work_class, kwargs.get("priority", 0))
        generation = _Generation(permit, watch, partial(batch_ended, request_id))
        outcome = Outcome.FAILED
        try:
            async with aclosing(generate(prompt, sampling_params, request_id, **kwargs)) as outputs:
                output = await _first(outputs, generation)
                while output is not None:
                    yield output
                    output = await anext(outputs, None)
            outcome = Outcome.FINISHED
        except (asyncio.CancelledError, GeneratorExit):
            outcome = Outcome.ABORTED
            raise
        finally:
            try:
                generation.end()
            finally:
                if own is not None:
                    own.leave(outcome)

    return admitted


def _declared(admitted: _Generate, engine: Any, admission: RequestAdmission) -> _Generate:
    """`admitted`, but a call beyond its key's limits fails when it is made."""
    context_tokens = engine.vllm_config.model_config.max_model_len
    grammars = GrammarLimits()

    def declared(
        prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        permit = current_permit.get()
        if sampling_params.structured_outputs is not None:
            _admit_grammar(admission, grammars, permit, sampling_params.structured_outputs)
        if permit is not None and sampling_params.prompt_logprobs is not None:
            _admit_prompt_logprobs(permit, prompt, sampling_params, engine)
        if not is_declared():
            _declare(_counted(prompt, sampling_params, context_tokens))
        return admitted(prompt, sampling_params, request_id, **kwargs)

    return declared


def _declare(counted: Counted) -> None:
    permit = current_permit.get()
    if permit is None:
        return
    try:
        permit.declare(counted)
    except Refused as refused:
        raise RefusedRequest(refused) from None


def _admit_grammar(
    admission: RequestAdmission, grammars: GrammarLimits, permit: Permit | None, structured: Any
) -> None:
    """Charge for a grammar; raises what vLLM answers with 400 or 429."""
    try:
        grammars.admit(Client() if permit is None else permit.work.client, structured)
    except Refused as refused:
        if permit is not None:
            permit.refusal = refused
            admission.count_refusal(refused, permit.work.work_class)
        raise RefusedRequest(refused) from None


def _admit_prompt_logprobs(permit: Permit, prompt: Any, sampling_params: Any, engine: Any) -> None:
    if permit.work.client.name == Client().name:
        return
    others = sampling_params.prompt_logprobs
    if others < 0:
        others = engine.model_config.get_vocab_size()
    # Text that vLLM has not rendered yet, as gRPC may bring it, has a token per letter at most.
    tokens = len(prompt) if isinstance(prompt, str) else prompt_tokens_of(prompt)
    permit.prompt_logprobs += sampling_params.n * tokens * (1 + others)
    if permit.prompt_logprobs > PROMPT_LOGPROBS_MAX:
        raise TooManyPromptLogprobs(permit.prompt_logprobs, PROMPT_LOGPROBS_MAX)


def _counted(prompt: Any, sampling_params: Any, context_tokens: int) -> Counted:
    """Work of a call; a prompt that vLLM has not rendered is not counted yet."""
    prompt_tokens = prompt_tokens_of(prompt)
    left_tokens = max(1, context_tokens - prompt_tokens)
    new_tokens = sampling_params.max_tokens
    if new_tokens is None or new_tokens >= left_tokens:
        # Nothing was said of it, or the estimate has what was said: the engine's bound is no wish.
        new_tokens = min(left_tokens, UNSAID_NEW_TOKENS)
    return Counted(
        sequences=sampling_params.n,
        prompt_tokens=prompt_tokens,
        new_tokens_max=sampling_params.n * new_tokens,
    )


async def _first(outputs: AsyncGenerator[Any, None], generation: _Generation) -> Any:
    """The first output; vLLM meanwhile adds the request's sequences, which become `generation`'s.

    The variable is set within one call of `anext`: between two a generator may move to another
    task, and so to another context.
    """
    token = _generation.set(generation)
    try:
        return await anext(outputs, None)
    finally:
        _generation.reset(token)


def _priority(work_class: WorkClass, asked: int) -> int:
    """Priority for vLLM, lower first: clients order their batch work, behind interactive work."""
    least = PRIORITY[work_class]
    return least if work_class is WorkClass.INTERACTIVE else max(least, asked)


def _work(prompt: Any, sampling_params: Any, context_tokens: int) -> Work:
    prompt_tokens = prompt_tokens_of(prompt)
    asked = sampling_params.max_tokens
    new_tokens = asked if asked is not None else max(1, context_tokens - prompt_tokens)
    return Work(
        client=Client(),
        work_class=WorkClass.INTERACTIVE,
        sequences=sampling_params.n,
        prompt_tokens=prompt_tokens,
        new_tokens_max=new_tokens * sampling_params.n,
    )


def _guard_preflight(engine: Any, admission: RequestAdmission) -> None:
    """Refuse work without a permit in vLLM's check, before a stream has begun."""
    check = engine.check_admission

    def check_admission(n: int = 1, request_id: str | None = None) -> None:
        if current_permit.get() is None and _generation.get() is None:
            refused = admission.would_refuse(Client(), WorkClass.INTERACTIVE)
            if refused is not None:
                admission.count_refusal(refused, WorkClass.INTERACTIVE)
                raise RefusedRequest(refused)
        check(n, request_id)

    setattr(check_admission, _MARK, True)
    engine.check_admission = check_admission
