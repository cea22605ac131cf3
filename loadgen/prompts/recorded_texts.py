"""Recorded texts to send: whole, or their first tokens under a cap."""

from collections.abc import Mapping, Sequence

from loadgen.prompts.wording import Recorded, TokenIds
from loadgen.records.tokenizer import Tokenizer
from loadgen.workloads.session_plan import WorkloadPlan

BATCH_TEXTS = 4_096  # split at once


async def recorded_ids(plan: WorkloadPlan, tokenizer: Tokenizer) -> Mapping[Recorded, TokenIds]:
    """Token ids of every recorded text of the plan."""
    wanted = _wanted(plan)
    texts = list(dict.fromkeys(text for text, _ in wanted))
    ids = dict(zip(texts, await _split(tokenizer, texts), strict=True))
    return {(text, tokens): ids[text][:tokens] for text, tokens in wanted}


async def recorded_texts(plan: WorkloadPlan, tokenizer: Tokenizer) -> Mapping[Recorded, str]:
    """The text of each recorded text's first tokens."""
    wanted = _wanted(plan)
    texts = list(dict.fromkeys(text for text, _ in wanted))
    ids = dict(zip(texts, await _split(tokenizer, texts), strict=True))
    cut = [each for each in wanted if each[1] < len(ids[each[0]])]
    found = {each: each[0] for each in wanted}
    found |= zip(
        cut, await tokenizer.decode([ids[text][:tokens] for text, tokens in cut]), strict=True
    )
    return found


def _wanted(plan: WorkloadPlan) -> list[Recorded]:
    found: dict[Recorded, None] = {}
    for calls in plan.sessions:
        for call in calls:
            for segment in call.segments:
                if segment.text is not None:
                    found[segment.text, segment.tokens] = None
    return list(found)


async def _split(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenIds]:
    ids: list[TokenIds] = []
    for first in range(0, len(texts), BATCH_TEXTS):
        ids += await tokenizer.encode(texts[first : first + BATCH_TEXTS])
    return ids
