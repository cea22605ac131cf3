"""A simulated run: each request's tokens over time, and the chips' load."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Slo
from serving.simulator.machine_calls import TimedCall
from serving.traffic.serving_run import Ending, ServingRun

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverOutcome:
    """What a policy's hand-overs came to.

    Attributes:
        handovers: of groups, there and back; engines `refused` some.
        moved_requests: those that went on elsewhere when their chips left.
        leased_chip_s: seconds of chips that were out, weights' reading included.
        trained_tokens: that last; `undone_tokens` were lost with jobs that were killed.
        inference_joules: all that is not the job's, idle power of its chips included, or of the
            hand-overs.
    """

    policy: str
    handovers: int
    refused: int
    moved_requests: int
    leased_chip_s: float
    job_starts: int
    trained_steps: int
    trained_tokens: int
    undone_tokens: int
    inference_joules: float
    training_joules: float
    handover_joules: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """The result of `simulate`.

    Attributes:
        served: every request, token and step, and the joules of the whole run.
        sent: the requests of the traffic that `served` and `judged` are of: all, but in a closed
            loop that time ends those that it lets begin.
        judged: requests of the figures, [requests]; the others are load.
        begin_s, end_s: the window of the next three, in the traffic's own time.
        chip_watts: of all chips of all replicas, idle times included.
        busy_share: of the window, the part with a step.
        throttled_share: of the steps' time, the lengthening by a power budget.
        handovers: of a policy of day and night; None without one.
        calls: those of the policy, to the engines; a run with them in its place is the same.
    """

    served: ServingRun
    sent: Bools
    judged: Bools
    begin_s: float
    end_s: float
    chip_watts: float
    busy_share: float
    throttled_share: float
    handovers: HandoverOutcome | None = None
    calls: tuple[TimedCall, ...] = ()

    @property
    def ttft_s(self) -> Float64s:
        """Arrival to first token, [judged]. A missing token is infinite; NaN after an early end as
        hopeless, as it might still have come.
        """
        times_s: Float64s = np.nan_to_num(self.served.ttft_s[self.judged], nan=self._open_s)
        return times_s

    @property
    def tpot_s(self) -> Float64s:
        """First to last token over the tokens after the first, [judged]; 0 for replies of one
        token. Missing tokens as in `ttft_s`.
        """
        several = self.served.traffic.output_tokens[self.judged] > 1
        times_s = np.nan_to_num(self.served.tpot_s[self.judged], nan=self._open_s)
        return np.where(several, times_s, 0.0)

    @property
    def tpot_of_several_s(self) -> Float64s:
        """`tpot_s` of the judged requests with more than one token."""
        several: Bools = self.served.traffic.output_tokens[self.judged] > 1
        return self.tpot_s[several]

    @property
    def e2e_s(self) -> Float64s:
        """Arrival to last token, [judged]. Missing tokens as in `ttft_s`."""
        times_s: Float64s = np.nan_to_num(self.served.e2e_s[self.judged], nan=self._open_s)
        return times_s

    @property
    def _open_s(self) -> float:
        is_open = self.served.ending in (Ending.HOPELESS, Ending.STOPPED)
        return np.nan if is_open else np.inf

    def ttft_percentile_s(self, q: float) -> float | None:
        """Of judged requests; None when unknown."""
        return known_percentile(self.ttft_s, q)

    def tpot_percentile_s(self, q: float) -> float | None:
        """Of judged requests with more than one token; None when unknown."""
        return known_percentile(self.tpot_of_several_s, q)

    def shares(self, slo: Slo) -> tuple[float, float, float]:
        """Shares of judged requests within TTFT, TPOT, and both; 1 for a limit that `slo` lacks."""
        in_ttft = self.ttft_s <= (np.inf if slo.ttft_s is None else slo.ttft_s)
        in_tpot = self.tpot_s <= (np.inf if slo.tpot_s is None else slo.tpot_s)
        both = in_ttft & in_tpot
        return float(in_ttft.mean()), float(in_tpot.mean()), float(both.mean())

    @property
    def begun_per_s(self) -> float:
        """Requests with their first token in the window, judged or not, per second."""
        first_s = self.served.first_token_s
        began = (first_s >= self.begin_s) & (first_s < self.end_s)  # NaN: not begun
        return float(began.sum()) / (self.end_s - self.begin_s)

    @property
    def output_tokens(self) -> int:
        """Asked for by judged requests."""
        return int(self.served.traffic.output_tokens[self.judged].sum())

    @property
    def joules_per_token(self) -> float:
        """Chips' energy of the whole run per output token; NaN without tokens."""
        return self.served.joules_per_token


def known_percentile(times_s: Float64s, q: float) -> float | None:
    """The smallest time that q percent do not exceed; None when empty or unknown."""
    if not len(times_s) or np.isnan(times_s).any():
        return None
    found = percentile(times_s, q)
    return found if np.isfinite(found) else None
