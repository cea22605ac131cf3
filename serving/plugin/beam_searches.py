"""Declares a beam search's whole work before it runs, as vLLM calls `generate` per beam and token.

A search beyond its key's limits thus fails before a beam has run.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final

from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin

from serving.policy.admission.entry import Counted

_MARK: Final = "declares_beams"

_declared: ContextVar[bool] = ContextVar("ultraserve_declared_beams", default=False)


def is_declared() -> bool:
    """Whether this task's request is part of a declared search."""
    return _declared.get()


def prompt_tokens_of(prompt: Any) -> int:
    """Tokens of a prompt as rendered by vLLM; 0 if it is not."""
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(token_ids or ())


def beams_counted(prompt: Any, params: Any) -> Counted:
    """Most work of a search: each step computes every beam's context and makes a token of each."""
    width, steps = params.beam_width, params.max_tokens
    prompt_tokens = prompt_tokens_of(prompt)
    # The first step has one beam; the beams of step `i` are `i` tokens longer than the prompt.
    longer = steps - 1
    contexts = prompt_tokens + width * (longer * prompt_tokens + longer * steps // 2)
    return Counted(
        sequences=width,
        prompt_tokens=contexts,
        new_tokens_max=1 + width * longer,
    )


def declare_beams(declare: Callable[[Counted], None]) -> None:
    """Make vLLM's beam searches declare themselves; idempotent."""
    search = BeamSearchOnlineMixin.beam_search
    if hasattr(search, _MARK):
        return

    def beam_search(
        self: Any, prompt: Any, request_id: str, params: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        declare(beams_counted(prompt, params))
        return _searched(search(self, prompt, request_id, params, *args, **kwargs))

    setattr(beam_search, _MARK, True)
    BeamSearchOnlineMixin.beam_search = beam_search


async def _searched(outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The search's outputs, its requests declared.

    Each `anext` runs in its caller's context, so the variable is set and reset around it.
    """
    async with aclosing(outputs):
        while True:
            token = _declared.set(True)
            try:
                output = await anext(outputs, None)
            finally:
                _declared.reset(token)
            if output is None:
                return
            yield output
