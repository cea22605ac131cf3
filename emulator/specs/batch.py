"""The batch of one step for the cost model: a row per request, without token values."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBatch:
    """Work of each of `ranks` data-parallel ranks in one lockstep.

    A request computes `new_tokens` over `context_tokens` with cached keys and values. `logit_rows`
    counts the positions whose logits a rank needs. Raises ValueError for another shape or dtype, an
    unknown rank, a request without new tokens, a negative context, or more logit rows than new
    tokens on a rank.

    Drafts are beside the new tokens: None leaves them to the cost model, which then has as many for
    every decode. `verified_drafts` are guesses that this step checks, `made_drafts` those that it
    makes for the next.
    """

    ranks: int
    rank: Int64s  # [requests]
    new_tokens: Int64s  # [requests]
    context_tokens: Int64s  # [requests]
    logit_rows: Int64s  # [ranks]
    verified_drafts: Int64s | None = None  # [requests]
    made_drafts: Int64s | None = None  # [requests]

    def __post_init__(self) -> None:
        requests = self.rank.shape
        if self.ranks < 1 or len(requests) != 1:
            raise ValueError(f"a step has ranks and a row per request: {self.ranks}, {requests}")
        for name, array, shape in (
            ("rank", self.rank, requests),
            ("new_tokens", self.new_tokens, requests),
            ("context_tokens", self.context_tokens, requests),
            ("logit_rows", self.logit_rows, (self.ranks,)),
            ("verified_drafts", self.verified_drafts, requests),
            ("made_drafts", self.made_drafts, requests),
        ):
            if array is None:
                continue
            if array.shape != shape or array.dtype != np.int64:
                raise ValueError(f"{name} is int64{shape}, not {array.dtype}{array.shape}")
        if requests[0]:
            self._check_rows()
        if (self.logit_rows < 0).any() or (self.logit_rows > self.tokens_by_rank()).any():
            raise ValueError("a rank's logit rows are some of its new tokens")

    def _check_rows(self) -> None:
        if self.rank.min() < 0 or self.rank.max() >= self.ranks:
            raise ValueError(f"a request runs on one of {self.ranks} ranks")
        if self.new_tokens.min() < 1:
            raise ValueError("a scheduled request has at least one new token")
        if self.context_tokens.min() < 0:
            raise ValueError("a context is not negative")
        for drafts in (self.verified_drafts, self.made_drafts):
            if drafts is not None and drafts.min() < 0:
                raise ValueError("drafts are not negative")

    def tokens_by_rank(self) -> Int64s:
        """New tokens of each rank, int64[ranks]."""
        counted = np.bincount(self.rank, weights=self.new_tokens, minlength=self.ranks)
        return counted.astype(np.int64)
