"""The guesses of one step: what may follow each text that has got a token, place after place.

A guess is drawn as the token in its place will be, by the request's own seed and position: so it is
right wherever the drafting model's choice is the model's, also of random requests.
"""

from collections.abc import Collection

import numpy as np

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.chip.request_table import ChipRequest, RequestTable
from emulator.compute.sampling import sample
from emulator.compute.token_batch import Span
from emulator.specs.step import RankStep, Scheduled


class Guesses:
    """Up to `count` guesses of each of a step's `sampled` requests.

    What drafts reads, at each position, the token `shift` places on: 0 for a model of its own, 1
    for a layer that has the model's hidden row beside it. Its first pass is over all of the step's
    tokens that stay, for its KV cache, each further one over a guess of each request. Requests hold
    their guesses until `end`. A request gets none beyond its blocks, none under a grammar, and none
    with log-probabilities.
    """

    def __init__(
        self,
        requests: RequestTable,
        step: RankStep,
        sampled: Collection[str],
        *,
        count: int,
        shift: int,
        block_tokens: int,
    ) -> None:
        self._count = count
        self._shift = shift
        self._block_tokens = block_tokens
        self._requests = {item.request_id: requests[item.request_id] for item in step.scheduled}
        self._lengths = {name: len(request) for name, request in self._requests.items()}
        self._drawn = set(sampled)
        free = self._drawn.difference(step.grammar_rows)
        self._guessing = [name for name in self._requests if name in free and self._may_guess(name)]
        self._guesses: dict[str, list[int]] = {name: [] for name in self._guessing}
        self._passes = 0

    def first_pass(self, scheduled: Collection[Scheduled]) -> tuple[list[Span], Int64s]:
        """The first pass's tokens, and each guessing request's last row among them."""
        spans, last, rows = [], [], 0
        for item in scheduled:
            request = self._requests[item.request_id]
            end = item.first_position + item.new_tokens + self._shift
            if item.request_id in self._drawn:
                end = len(request)
            end = min(end, self._room(request) + self._shift)
            token_ids = request.tokens(item.first_position + self._shift, end)
            spans.append(_span(request, token_ids, item.first_position))
            rows += len(token_ids)
            if item.request_id in self._guesses:
                last.append(rows - 1)
        return spans, np.array(last, dtype=np.int64)

    def take(self, scores: Float32s) -> tuple[list[Span], Int64s]:
        """Draw a guess of each guessing request from its row of `scores` [requests, vocab].

        Returns the next pass's tokens, none at the end, and the row of `scores` of each.
        """
        if not self._guessing:
            return [], np.zeros(0, dtype=np.int64)
        requests = [self._requests[name] for name in self._guessing]
        drawn = sample(
            scores,
            [request.sampling for request in requests],
            [request.prompt for request in requests],
            [request.generated for request in requests],
        )
        for name, token_id in zip(self._guessing, drawn.token_ids.tolist(), strict=True):
            self._requests[name].append(token_id)
            self._guesses[name].append(token_id)
        self._passes += 1
        rows = [row for row, name in enumerate(self._guessing) if self._may_guess(name)]
        self._guessing = [self._guessing[row] for row in rows] * (self._passes < self._count)
        spans = []
        for name in self._guessing:
            request, length = self._requests[name], len(self._requests[name])
            token_ids = request.tokens(length - 1, length)
            spans.append(_span(request, token_ids, length - 1 - self._shift))
        return spans, np.array(rows, dtype=np.int64)

    def end(self) -> dict[str, list[int]]:
        """The guesses by request, which the requests no longer hold."""
        for name, request in self._requests.items():
            request.cut(self._lengths[name])
        return {name: guesses for name, guesses in self._guesses.items() if guesses}

    def _may_guess(self, name: str) -> bool:
        request = self._requests[name]
        position = len(request) - 1 - self._shift  # of the pass that guesses next
        return position < self._room(request) and not request.sampling.wants_logprobs

    def _room(self, request: ChipRequest) -> int:
        return len(request.block_ids) * self._block_tokens


def _span(request: ChipRequest, token_ids: Int32s, first_position: int) -> Span:
    return Span(token_ids=token_ids, first_position=first_position, block_table=request.block_ids)
