"""Chips that draft, served as vLLM's scheduler does: what a step guesses, the next one verifies."""

from collections.abc import Mapping, Sequence

from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, InProcessChips, new_requests

RANDOM = SamplingSpec(temperature=0.9, top_p=0.95, seed=5)


def draft_texts(
    chips: InProcessChips,
    prompts: Mapping[str, Sequence[int]],
    *,
    new_tokens: int,
    chunk_tokens: int = 100_000,
    sampling: SamplingSpec = GREEDY,
) -> tuple[dict[str, list[int]], dict[str, dict[int, list[int]]]]:
    """Serve `prompts` together until each has `new_tokens`, and those of its last step's drafts.

    Returns their texts, and the guesses of each, by the length that its text then had.
    """
    texts: dict[str, list[int]] = {name: [] for name in prompts}
    drafts: dict[str, dict[int, list[int]]] = {name: {} for name in prompts}
    rank_of = {name: index % chips.ranks for index, name in enumerate(prompts)}
    computed = dict.fromkeys(prompts, 0)
    new = new_requests(chips, prompts, rank_of, new_tokens + 16, sampling, None)
    while any(len(text) < new_tokens for text in texts.values()):
        steps, guessed = [], {}
        for rank in range(chips.ranks):
            scheduled = []
            for name in prompts:
                if rank_of[name] != rank or len(texts[name]) >= new_tokens:
                    continue
                own = len(prompts[name]) + len(texts[name]) - computed[name]
                guessed[name] = drafts[name].get(len(texts[name]), []) if own == 1 else []
                count = min(own + len(guessed[name]), chunk_tokens)
                scheduled.append(
                    Scheduled(
                        request_id=name,
                        first_position=computed[name],
                        new_tokens=count,
                        draft_tokens=guessed[name],
                    )
                )
                computed[name] += min(own, count)
            if scheduled:
                steps.append(
                    RankStep(rank=rank, new=new.pop(rank, []), scheduled=scheduled, finished=[])
                )
        for output in chips.step(steps).values():
            before = {name: len(text) for name, text in texts.items()}
            for name, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
                texts[name].append(token)
            for name in set(output.request_ids):
                computed[name] += len(texts[name]) - before[name] - 1
                drafts[name][len(texts[name])] = output.drafts.get(name, [])
    return texts, drafts


def cut(texts: Mapping[str, list[int]], length: int) -> dict[str, list[int]]:
    """The texts' first `length` tokens."""
    return {name: text[:length] for name, text in texts.items()}
