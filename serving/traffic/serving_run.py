"""Record of serving traffic: each request's tokens over time, and each step.

Emulated times on the traffic's own axis, NaN where unseen; a stopped run gives bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Ending(StrEnum):
    """The reason that a run ended."""

    SERVED = "served"  # every request has its last token, or has failed
    JUDGED = "judged"  # every request that the run was about has; others have not
    HOPELESS = "hopeless"  # a level is missed whatever comes
    STOPPED = "stopped"  # by the watcher of its progress
    TIME_UP = "time is up"  # the emulated time it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTotals:
    """Of a run whose steps and tokens were counted, and not kept."""

    steps: int
    tokens: int
    emulated_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingRun:
    """Times of each request of `traffic`, each token and each step.

    `token_request` is the request of every token, in the order of steps; a step's tokens come with
    its end. `joules` are of all chips until `emulated_s`, idle times included.
    `kv_blocks_used_max` is of one rank, after a scheduling; `empty_rank_steps` sums, over steps,
    the ranks without a token. With `totals` there are no times of tokens and steps.

    Raises ValueError for arrays that contradict each other.
    """

    traffic: Traffic
    ending: Ending
    arrival_s: Float64s  # [requests], NaN for what had not come by the end
    first_token_s: Float64s  # [requests], NaN without one
    last_token_s: Float64s  # [requests], NaN for what is not finished
    token_request: Int32s  # [tokens]
    step_end_s: Float64s  # [steps]
    step_tokens: Int64s  # [steps]
    busy_s: float
    joules: float
    preemptions: int
    kv_blocks_used_max: int
    empty_rank_steps: int
    failed: Bools  # [requests], ended without all their tokens
    hits: Int64s | None = None  # [requests], prompt tokens that were cached; None: not counted
    totals: ServedTotals | None = None

    def __post_init__(self) -> None:
        requests = (len(self.traffic),)
        times_s = (self.arrival_s, self.first_token_s, self.last_token_s)
        if any(each.shape != requests for each in times_s):
            raise ValueError(f"arrival, first and last token of each of {requests[0]} requests")
        if self.step_end_s.shape != self.step_tokens.shape:
            raise ValueError("an end and a count of tokens for each step")
        if self.step_tokens.sum() != len(self.token_request):
            raise ValueError("the steps give the tokens")
        if (self.ending is Ending.SERVED) != bool((self.finished | self.failed).all()):
            raise ValueError(f"{self.ending} does not fit what is finished")

    @property
    def finished(self) -> Bools:
        """Requests with all their tokens, [requests]."""
        finished: Bools = ~np.isnan(self.last_token_s)
        return finished

    @property
    def steps(self) -> int:
        """Locksteps that computed something."""
        return len(self.step_end_s) if self.totals is None else self.totals.steps

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return len(self.token_request) if self.totals is None else self.totals.tokens

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were cached; 0 if not counted."""
        return 0 if self.hits is None else int(self.hits.sum())

    @property
    def emulated_s(self) -> float:
        """End of the last step; 0 without any."""
        if self.totals is not None:
            return self.totals.emulated_s
        return float(self.step_end_s[-1]) if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the whole run, idle times included; 0 for an empty run."""
        return self.tokens / self.emulated_s if self.steps else 0.0

    @property
    def joules_per_token(self) -> float:
        """Chips' energy per output token; NaN without tokens."""
        return self.joules / self.tokens if self.tokens else float("nan")

    @property
    def ttft_s(self) -> Float64s:
        """From arrival to first token, [requests]; NaN without one."""
        ttft_s: Float64s = self.first_token_s - self.arrival_s
        return ttft_s

    @property
    def e2e_s(self) -> Float64s:
        """From arrival to last token, [requests]; NaN if unfinished."""
        e2e_s: Float64s = self.last_token_s - self.arrival_s
        return e2e_s

    @property
    def tpot_s(self) -> Float64s:
        """First to last token over later tokens, [requests]; NaN if unfinished or one token."""
        gaps = self.traffic.output_tokens - 1
        spans_s = self.last_token_s - self.first_token_s
        tpot_s = np.full(len(gaps), np.nan)
        np.divide(spans_s, gaps, out=tpot_s, where=gaps > 0)
        return tpot_s

    @property
    def token_s(self) -> Float64s:
        """Times of `token_request`'s tokens, [tokens]."""
        return np.repeat(self.step_end_s, self.step_tokens)

    def itl_s(self) -> Float64s:
        """Gaps between neighbouring tokens of a request, by request: [tokens - requests begun]."""
        order = np.argsort(self.token_request, kind="stable")
        request, token_s = self.token_request[order], self.token_s[order]
        gaps_s: Float64s = np.diff(token_s)[request[1:] == request[:-1]]
        return gaps_s

    def missed(self, bound: Bound) -> Bools:
        """Requests certain to have missed `bound` by the end, [requests]; exact if all ended."""
        return missed_by(
            bound,
            self.traffic.output_tokens,
            arrival_s=self.arrival_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            now_s=self.emulated_s,
        )


def missed_by(
    bound: Bound,
    output_tokens: Int64s,
    *,
    arrival_s: Float64s,
    first_token_s: Float64s,
    last_token_s: Float64s,
    now_s: float,
) -> Bools:
    """Requests certain to have missed `bound` by `now_s`, [requests]; missing times are NaN."""
    first_s = np.where(np.isnan(first_token_s), now_s, first_token_s)
    if bound.name == "ttft":
        late: Bools = first_s - arrival_s > bound.limit_s
        return late
    assert bound.name == "tpot", bound
    last_s = np.where(np.isnan(last_token_s), now_s, last_token_s)
    gaps = np.maximum(output_tokens - 1, 1)
    # The span is 0 for a reply of one token, and without a first one: then nothing is missed yet.
    slow: Bools = (last_s - first_s) / gaps > bound.limit_s
    return slow


def are_out_of_reach(
    levels: Sequence[Bound],
    judged: Bools,
    output_tokens: Int64s,
    *,
    arrival_s: Float64s,
    first_token_s: Float64s,
    last_token_s: Float64s,
    now_s: float,
) -> bool:
    """Whether more of the `judged` requests [requests] are certain to miss a level than it allows.

    As `missed_by`.
    """
    requests = int(judged.sum())
    for level in levels:
        missed = missed_by(
            level,
            output_tokens,
            arrival_s=arrival_s,
            first_token_s=first_token_s,
            last_token_s=last_token_s,
            now_s=now_s,
        )
        if requests and (requests - int(missed[judged].sum())) / requests < level.share:
            return True
    return False
