"""The requests of a rank's chip: tokens, block tables and sampling."""

from collections.abc import Sequence

import numpy as np

from emulator.arrays import Int32s
from emulator.compute.token_batch import Span
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, RowLogprobs, Scheduled


class ChipRequest:
    """One request on its rank's chip.

    Invariants: 0 < prompt_tokens <= tokens; the block table covers every computed position.
    """

    __slots__ = (
        "_buffer",
        "_length",
        "block_ids",
        "is_plain_greedy",
        "prompt_rows",
        "prompt_tokens",
        "sampling",
        "scored_tokens",
    )

    def __init__(self, new: NewRequest) -> None:
        assert 0 < new.prompt_tokens <= len(new.token_ids), new.request_id
        self._buffer = np.zeros(max(64, 2 * len(new.token_ids)), dtype=np.int32)
        self._buffer[: len(new.token_ids)] = new.token_ids
        self._length = len(new.token_ids)
        self.prompt_tokens = new.prompt_tokens
        self.sampling: SamplingSpec = new.sampling
        self.is_plain_greedy = new.sampling.is_plain_greedy
        self.block_ids = list(new.block_ids)
        self.prompt_rows: list[RowLogprobs] = []
        self.scored_tokens = 0  # of the prompt: their rows are in `prompt_rows`, or were returned

    def __len__(self) -> int:
        return self._length

    def append(self, token_id: int) -> None:
        """Add a sampled token."""
        if self._length == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros_like(self._buffer)])
        self._buffer[self._length] = token_id
        self._length += 1

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens, the prompt among them."""
        assert self.prompt_tokens <= length <= self._length, (length, self._length)
        self._length = length

    def tokens(self, start: int, end: int) -> Int32s:
        """Token ids of positions [start, end); a view."""
        assert end <= self._length, (start, end, self._length)
        return self._buffer[start:end]

    @property
    def prompt(self) -> Int32s:
        """The prompt's token ids; a view."""
        return self._buffer[: self.prompt_tokens]

    @property
    def generated(self) -> Int32s:
        """The sampled tokens; a view."""
        return self._buffer[self.prompt_tokens : self._length]


class RequestTable:
    """All requests of one rank, updated by the differences in `RankStep`."""

    def __init__(self) -> None:
        self._requests: dict[str, ChipRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, request_id: str) -> ChipRequest:
        return self._requests[request_id]

    def apply(self, step: RankStep) -> None:
        """Add new requests, drop finished ones, extend block tables."""
        for request_id in step.finished:
            self._requests.pop(request_id, None)
        for new in step.new:
            self._requests[new.request_id] = ChipRequest(new)
        for scheduled in step.scheduled:
            request = self._requests[scheduled.request_id]
            if scheduled.replaces_blocks:
                request.block_ids = list(scheduled.new_block_ids)
            else:
                request.block_ids.extend(scheduled.new_block_ids)

    def spans(self, scheduled: Sequence[Scheduled]) -> list[Span]:
        """The tokens of a step, one span per scheduled request."""
        spans = []
        for item in scheduled:
            request = self._requests[item.request_id]
            drafts = item.draft_tokens
            end = item.first_position + item.new_tokens - len(drafts)
            token_ids = request.tokens(item.first_position, end)
            if drafts:
                token_ids = np.append(token_ids, np.array(drafts, dtype=np.int32))
            spans.append(
                Span(
                    token_ids=token_ids,
                    first_position=item.first_position,
                    block_table=request.block_ids,
                )
            )
        return spans
