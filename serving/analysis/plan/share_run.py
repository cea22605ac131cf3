"""What one replica's share of a plan's traffic shows: each judged request's times and limits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Bools
from loadgen.measures.slo import Bound
from serving.analysis.plan.class_demand import ClassBound, ClassesDemand, measure_of
from serving.analysis.plan.plan_demand import PlanDemand
from serving.simulator import Run
from serving.traffic.serving_run import Ending

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareRun:
    """What the run of one replica's share shows of its judged requests.

    Attributes:
        begin_s, end_s: of the judged arrivals: where these depend on the run, as they came.
        kept: of each limit 1 for each request that kept it, else 0, by arrival: [judged], or those
            of the limit's class.
        times_s: TTFT, TPOT, E2E, of all and of each class: [requests that have one].
        has_one: which of the judged requests these are, by arrival: [judged].
        hit_tokens, prompt_tokens: of the judged requests that have a first token.
    """

    simulated_requests: int
    begin_s: float
    end_s: float
    warmup_s: float
    kept: tuple[Float64s, ...]
    times_s: dict[str, Float64s]
    has_one: dict[str, Bools]
    hit_tokens: int
    prompt_tokens: int
    chip_watts: float
    busy_share: float
    throttled_share: float
    preemptions: int
    kv_blocks_used_max: int
    steps: int
    ending: Ending

    @property
    def judged(self) -> int:
        """Requests."""
        return len(self.has_one["ttft"])

    def in_windows(self, measure: str, windows: int) -> list[Float64s]:
        """Its times in equally many judged requests after each other, whether they have one or not:
        [windows][requests that have one].
        """
        parts = np.array_split(self.has_one[measure], windows)
        return np.split(self.times_s[measure], np.cumsum([part.sum() for part in parts])[:-1])


def measure_of_bound(bound: Bound) -> str:
    """As `measure_of`, of a bound of all or of a class."""
    traffic_class = bound.traffic_class if isinstance(bound, ClassBound) else ""
    return measure_of(traffic_class, bound.name)


def by_arrival(run: Run, *, from_s: float = -np.inf, most: int | None = None) -> Int64s:
    """The first `most` judged requests that did not come before `from_s`, as they came: places
    among the judged ones. Those that have not come are the last.
    """
    came_s = run.served.arrival_s[run.judged]
    order = np.argsort(came_s, kind="stable")
    return order[~(came_s[order] < from_s)][:most]


def has_one_of(
    run: Run, order: Int64s, demand: PlanDemand, of_class: Int64s | None
) -> dict[str, Bools]:
    """Which judged requests have a time, of all and of each class, in their `order`: [judged]."""
    several = run.served.traffic.output_tokens[run.judged][order] > 1
    every = np.full(len(several), True)
    found = {"ttft": every, "tpot": several, "e2e": every}
    for number, each in enumerate(demand.classes if isinstance(demand, ClassesDemand) else ()):
        own = {name: found[name] & (of_class == number) for name in ("ttft", "tpot", "e2e")}
        found |= {measure_of(each.name, name): has_one for name, has_one in own.items()}
    return found


def times_of(run: Run, order: Int64s, has_one: dict[str, Bools]) -> dict[str, Float64s]:
    """TTFT, TPOT, E2E, of all and of each class, in their `order`: [requests that have one]."""
    each_s = {"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}
    times_s = {name: of_all[order] for name, of_all in each_s.items()}
    return {measure: times_s[measure.rsplit(" ", 1)[-1]][has_one[measure]] for measure in has_one}


def kept_of(run: Run, order: Int64s, bound: Bound, of_class: Int64s | None) -> Float64s:
    """1 for each judged request that kept the bound, else 0, in their `order`: [judged of its
    class].
    """
    served = run.served
    late = served.missed(bound) | served.failed
    if served.ending is Ending.TIME_UP:
        late |= np.isnan(served.first_token_s) if bound.name == "ttft" else ~served.finished
    kept = (~late[run.judged][order]).astype(np.float64)
    return kept[of_class == bound.number] if isinstance(bound, ClassBound) else kept
