"""Checks the lengths of prompts before they are sent."""

from dataclasses import replace
from typing import Final, Literal, cast

from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.records.request import Request
from loadgen.records.run_record import Api
from loadgen.records.tokenizer import Tokenizer

SESSIONS_LOOKED_AT: Final = 32  # spread evenly over the workload, and the one of the longest prompt


async def check_prompts(
    workload: PromptedWorkload,
    tokenizer: Tokenizer,
    *,
    kind: Literal["token-ids", "text"],
    api: Api,
) -> PromptedWorkload:
    """Note prompts of another length than asked, with cause and cure.

    Token ids have their length; a sample of text prompts is split again as the server will do it.
    """
    notes = [*workload.notes, *_repeated(workload), *_too_short(workload)]
    if kind == "text":
        notes += await _miscounted(workload, tokenizer, api)
    return replace(workload, notes=tuple(notes))


def _repeated(workload: PromptedWorkload) -> list[str]:
    repeated = workload.plan.keys - workload.wording.keys
    if repeated <= 0:
        return []
    return [
        f"{repeated:,} of {workload.plan.keys:,} pieces of prompts may begin like another: the "
        "tokenizer tells too few words apart; prefix caches find what is not shared"
    ]


def _too_short(workload: PromptedWorkload) -> list[str]:
    """Requests whose template alone is as long as the prompt."""
    if not workload.taken:
        return []
    longer = added = 0
    for calls in workload.plan.sessions:
        for plan in calls:
            extra = workload.input_tokens(plan.segments) - plan.input_tokens
            longer += extra > 0
            added += extra
    if not longer:
        return []
    return [
        f"{longer:,} prompts are longer than asked for, by {added:,} tokens in all: the chat "
        "template, or the special tokens, take more than the prompt has, or its words are recorded"
    ]


async def _miscounted(workload: PromptedWorkload, tokenizer: Tokenizer, api: Api) -> list[str]:
    requests = _sample(workload)
    apart = []
    for request in requests:
        if api == "chat":
            messages = [(each.role, cast(str, each.content)) for each in request.messages]
            tokens = await tokenizer.chat_tokens(messages)
        else:
            tokens = await tokenizer.prompt_tokens(cast(str, request.prompt))
        apart.append(abs(tokens - request.input_tokens))
    wrong = [tokens for tokens in apart if tokens]
    if not wrong:
        return []
    return [
        f"{len(wrong)} of {len(requests)} prompts that were looked at differ from the length asked "
        f"for, by up to {max(wrong)} tokens: {tokenizer.words} joins or splits words at the seams "
        "between pieces; --prompts token-ids is exact"
    ]


def _sample(workload: PromptedWorkload) -> list[Request]:
    """The last request of some sessions, and the longest of all."""
    count = len(workload)
    if not count:
        return []
    step = max(1, count // SESSIONS_LOOKED_AT)
    longest = max(
        range(count),
        key=lambda index: max(call.input_tokens for call in workload.plan.sessions[index]),
    )
    indices = dict.fromkeys([*range(0, count, step)[:SESSIONS_LOOKED_AT], longest])
    return [workload.session(index).calls[-1].request for index in indices]
