"""The end of a step on a rank's leading chip: project, sample, remember, score prompts."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from emulator.arrays import Float32s, Int32s
from emulator.chip.commands import BeginStep
from emulator.chip.request_table import ChipRequest, RequestTable
from emulator.compute.decoder import OutputHead
from emulator.compute.logprobs import prompt_logprobs
from emulator.compute.sampling import Sampled, greedy, sample
from emulator.compute.token_batch import TokenBatch
from emulator.specs.step import RankOutput, RowLogprobs, Scheduled


def sample_step(
    head: OutputHead, requests: RequestTable, command: BeginStep, batch: TokenBatch, x: Float32s
) -> RankOutput:
    """Sample and remember the next tokens of each request whose last token is in `batch`.

    `x` [tokens, hidden] is the last layer's output. After a draft that is the token sampled in its
    place, its own row gives one more: texts are those without drafts, also of random requests,
    whose draws depend on seed and position alone.
    """
    prompt_rows: dict[str, RowLogprobs] = {}
    sampled: list[Scheduled] = []
    rows: list[int] = []  # of each sampled request, its own last token
    for start, item in zip(batch.spans.starts.tolist(), command.step.scheduled, strict=True):
        request = requests[item.request_id]
        end = item.first_position + item.new_tokens
        if request.sampling.prompt_logprobs is not None:
            own = x[start : start + item.new_tokens]
            complete = score_prompt(request, item, partial(_scores, head, own))
            if complete is not None:
                prompt_rows[item.request_id] = complete
        if end - len(item.draft_tokens) == len(request):
            sampled.append(item)
            rows.append(start + item.new_tokens - len(item.draft_tokens) - 1)
    if not rows:
        return no_output(command.step.rank, prompt_rows)
    names = [item.request_id for item in sampled]
    drawing = [requests[name] for name in names]
    bitmask = bitmask_rows(command.step.grammar_rows, command.grammar_bitmask, names)
    drawn = _draw(head, x[rows], drawing, bitmask)
    token_ids = drawn.token_ids
    if any(item.draft_tokens for item in sampled):
        names, token_ids = _draw_after_drafts(head, x, sampled, rows, drawing, token_ids)
    return RankOutput(
        rank=command.step.rank,
        request_ids=names,
        token_ids=token_ids,
        logprobs=drawn.logprobs,
        prompt_logprobs=prompt_rows,
    )


def _draw_after_drafts(
    head: OutputHead,
    x: Float32s,
    sampled: Sequence[Scheduled],
    rows: Sequence[int],
    drawing: Sequence[ChipRequest],
    token_ids: Int32s,
) -> tuple[list[str], Int32s]:
    """Sample on after drafts that are those first sampled, `token_ids` [sampled].

    Returns the request of each token, and all tokens.
    """
    asking = [
        item.draft_tokens and each.sampling.wants_logprobs
        for item, each in zip(sampled, drawing, strict=True)
    ]
    assert not any(asking), "log-probabilities are one row each"
    texts = [[token_id] for token_id in token_ids.tolist()]
    longest = max(len(item.draft_tokens) for item in sampled)
    right = list(range(len(sampled)))
    for place in range(longest):
        right = [n for n in right if sampled[n].draft_tokens[place : place + 1] == texts[n][-1:]]
        if not right:
            break
        more = _draw(head, x[np.array(rows)[right] + place + 1], [drawing[n] for n in right])
        for n, token_id in zip(right, more.token_ids.tolist(), strict=True):
            texts[n].append(token_id)
    names = [item.request_id for item, text in zip(sampled, texts, strict=True) for _ in text]
    return names, np.concatenate(texts).astype(np.int32)


def _draw(
    head: OutputHead, x: Float32s, drawing: Sequence[ChipRequest], bitmask: Int32s | None = None
) -> Sampled:
    """Sample and remember a token for each request from its row of `x` [rows, hidden]."""
    scores = head.logits(x)
    if bitmask is None and all(request.is_plain_greedy for request in drawing):
        drawn = greedy(scores)
    else:
        drawn = sample(
            scores,
            [request.sampling for request in drawing],
            [request.prompt for request in drawing],
            [request.generated for request in drawing],
            bitmask,
        )
    for request, token_id in zip(drawing, drawn.token_ids.tolist(), strict=True):
        request.append(token_id)
    return drawn


def _scores(head: OutputHead, x: Float32s, first: int, last: int) -> Float32s:
    return head.logits(x[first:last])


def no_output(rank: int, prompt_rows: dict[str, RowLogprobs] | None = None) -> RankOutput:
    """An output without samples."""
    return RankOutput(
        rank=rank,
        request_ids=[],
        token_ids=np.zeros(0, dtype=np.int32),
        logprobs=None,
        prompt_logprobs=prompt_rows or {},
    )


def score_prompt(
    request: ChipRequest, item: Scheduled, scores: Callable[[int, int], Float32s]
) -> RowLogprobs | None:
    """Add the log-probabilities of this chunk's prompt tokens; returns all of them at the end.

    `scores(first, last)` are logits [last - first, vocab]; row i of the chunk predicts the token at
    position first_position + i + 1. A preempted request's recomputed tokens are not scored again.
    """
    count = request.sampling.prompt_logprobs
    assert count is not None
    end = item.first_position + item.new_tokens
    first = max(item.first_position, request.scored_tokens)
    last = min(end, request.prompt_tokens - 1)
    if first < last:
        following = request.tokens(first + 1, last + 1)
        rows = scores(first - item.first_position, last - item.first_position)
        request.prompt_rows.append(prompt_logprobs(rows, following, count))
        request.scored_tokens = last
    return _concatenate(request) if end >= request.prompt_tokens else None


def _concatenate(request: ChipRequest) -> RowLogprobs | None:
    parts, request.prompt_rows = request.prompt_rows, []
    if not parts:
        return None
    return RowLogprobs(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )


def bitmask_rows(
    constrained: Sequence[str], bitmask: Int32s, request_ids: Sequence[str]
) -> Int32s | None:
    """Order the rows of a grammar bitmask, given by `constrained`, by `request_ids`.

    Unconstrained rows allow every token; None without constrained requests.
    """
    if not constrained:
        return None
    row_of = {request_id: row for row, request_id in enumerate(constrained)}
    rows = np.full((len(request_ids), bitmask.shape[1]), -1, dtype=np.int32)
    for index, request_id in enumerate(request_ids):
        if request_id in row_of:
            rows[index] = bitmask[row_of[request_id]]
    return rows
