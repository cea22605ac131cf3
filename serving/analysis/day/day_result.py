"""Result of a day under one policy: service, training, hand-overs, energy.

Machines are alike and independent: each has its own job, serves as many of the requests, and
follows the policy for itself. One is walked, and counts `machines` times.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.power.system_power import SystemPower
from emulator.specs.model import ModelSpec
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from emulator.timing.model_flops import served_flops
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.day_walk import DayWalk, kept_requests
from serving.analysis.day.leased_groups import HandoverTotals
from serving.analysis.day.partition_curve import GroupCurve
from serving.analysis.day.training_yield import TrainingYield

Float64s = NDArray[np.float64]

JOULES_PER_MWH: Final = 3.6e9
WORST_S: Final = 300.0
"""The shortest time by which a day is judged too: a flash crowd is nothing to a whole day."""
_FLOPS_SAMPLE: Final = 2_000


class ValueUnit(StrEnum):
    """What a day's value per MWh counts."""

    FLOPS = "flops"  # model flops, of served and trained tokens
    TOKENS = "tokens"  # output tokens served, and trained tokens
    TRAINED = "trained"  # trained tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class DayMachine:
    """A system in groups of `group_chips`, one of `machines` alike; `flops_per_request` is a mean.

    `unit`: what counts, by `request_value` and `token_value`.
    """

    system: SystemSpec
    machines: int
    group_chips: int
    curve: GroupCurve
    trained: TrainingYield
    mean_prompt_tokens: float
    mean_output_tokens: float
    flops_per_request: float
    season: Season = Season.PEAK
    unit: ValueUnit = ValueUnit.FLOPS

    @property
    def groups(self) -> int:
        """Of one machine."""
        return self.trained.groups

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of a machine's groups within the target."""
        return self.groups * self.curve.capacity_per_s

    @property
    def request_value(self) -> float:
        """Of a request that is served."""
        return {
            ValueUnit.FLOPS: self.flops_per_request,
            ValueUnit.TOKENS: self.mean_output_tokens,
            ValueUnit.TRAINED: 0.0,
        }[self.unit]

    @property
    def token_value(self) -> float:
        """Of a token that is trained."""
        return self.trained.flops_per_token if self.unit is ValueUnit.FLOPS else 1.0

    def value(self, requests: float, tokens: float, mwh: float) -> float:
        """Of served requests and trained tokens, per MWh."""
        return (self.request_value * requests + self.token_value * tokens) / mwh

    @cached_property
    def _facility_line(self) -> tuple[float, float]:
        """Watts of a machine at the meter at 0 chip watts, and per chip watt; see SystemPower."""
        power = SystemPower(self.system)
        chips = self.system.chips.count
        low = chips * self.system.chip.idle_watts.value
        high = chips * self.system.chip.budget_watts.value
        at_low = power.facility_watts(low, chips=chips, season=self.season).total_watts
        if high <= low:
            return at_low - low, 1.0
        at_high = power.facility_watts(high, chips=chips, season=self.season).total_watts
        slope = (at_high - at_low) / (high - low)
        return at_low - slope * low, slope

    def facility_watts(self, chip_watts: Float64s) -> Float64s:
        """Watts at the utility's meter for the chip watts of one machine, [any] -> [any]."""
        base, slope = self._facility_line
        watts: Float64s = base + slope * chip_watts
        return watts

    @property
    def left_over_watts(self) -> float:
        """Of the chips outside of groups, which idle."""
        left_over = self.system.chips.count - self.groups * self.group_chips
        return left_over * self.system.chip.idle_watts.value

    def chip_watts(self, walk: DayWalk) -> Float64s:
        """Mean of one machine's chips in each interval, [intervals]."""
        interval_s = walk.demand.interval_s
        at_work_s = walk.column("serving_s") + walk.column("leaving_s")
        serving = self.curve.chip_watts(walk.group_rates, walk.serving) * at_work_s / interval_s
        watts: Float64s = serving + walk.column("joules") / interval_s + self.left_over_watts
        return watts


def mean_request_flops(model: ModelSpec, lengths: ObservedLengths) -> float:
    """Mean flops of a request, over all lengths or an even sample of many."""
    seen = len(lengths.prompt_tokens)
    which = np.linspace(0, seen - 1, min(seen, _FLOPS_SAMPLE)).astype(np.int64)
    pairs = zip(lengths.prompt_tokens[which], lengths.output_tokens[which], strict=True)
    each = [
        served_flops(model, prompt_tokens=int(prompt), output_tokens=int(output))
        for prompt, output in pairs
    ]
    return float(np.mean(each))


@dataclass(frozen=True, kw_only=True, eq=False)
class DayResult:
    """One policy, as a user writes it, on one day at one load; of all machines."""

    machine: DayMachine
    walk: DayWalk
    policy: str
    describes: str

    @cached_property
    def requests(self) -> int:
        """Arrived."""
        return self.machine.machines * int(self.walk.demand.arrivals.sum())

    def kept(self, name: str) -> Float64s:
        """One machine's requests with `ttft_share`, `tpot_share` or `both_share` kept, [intervals].

        Late ones miss TTFT; moved ones keep both limits as the others do (assumed; so they nearly
        all do step by step).
        """
        walk = self.walk
        return kept_requests(
            self.machine.curve,
            name,
            arrivals=walk.demand.arrivals,
            late=walk.late,
            served_rates=walk.group_rates,
            arrival_rates=walk.arrival_rates,
            serving=walk.serving,
        )

    def attainment(self, name: str) -> float:
        """Share of the requests with a share's limits kept; 1 of none."""
        if not self.requests:
            return 1.0
        kept = float(self.kept(name).sum())
        return max(0.0, kept / float(self.walk.demand.arrivals.sum()))

    @cached_property
    def slo_attainment(self) -> float:
        """Share of the requests that kept both limits."""
        return self.attainment("both_share")

    @cached_property
    def worst_5min_attainment(self) -> float:
        """The same share in the 5 minutes of the day that have the lowest; 1 without requests."""
        width = max(1, round(WORST_S / self.walk.demand.interval_s))
        window = np.ones(min(width, len(self.walk.times)))
        kept = np.convolve(self.kept("both_share"), window, mode="valid")
        came = np.convolve(self.walk.demand.arrivals, window, mode="valid")
        shares = np.divide(kept, came, out=np.ones(len(came)), where=came > 0.5)
        return float(np.clip(shares.min(), 0.0, 1.0))

    @property
    def keeps_target(self) -> bool:
        """Whether the required share kept both limits, over the day."""
        return self.slo_attainment >= self.machine.curve.required_share

    @property
    def keeps_worst_5min(self) -> bool:
        """Whether it did in the worst 5 minutes too."""
        return self.worst_5min_attainment >= self.machine.curve.required_share

    @cached_property
    def totals(self) -> HandoverTotals:
        """Hand-overs and what they cost."""
        totals = HandoverTotals()
        totals.add(self.walk.totals, self.machine.machines)
        return totals

    @property
    def handovers(self) -> int:
        """Groups that left, and that came back."""
        return self.totals.left + self.totals.came_back

    @property
    def moved_requests(self) -> float:
        """Whose group left before they ended."""
        return self.machine.machines * float(self.walk.moved.sum())

    def _column_sum(self, name: str) -> float:
        return self.machine.machines * float(self.walk.column(name).sum())

    @cached_property
    def served_requests(self) -> float:
        """Served by the end of the day."""
        return self.machine.machines * float(self.walk.served.sum())

    @property
    def served_output_tokens(self) -> float:
        """By the mean length of a reply."""
        return self.served_requests * self.machine.mean_output_tokens

    @property
    def served_input_tokens(self) -> float:
        """By the mean length of a prompt."""
        return self.served_requests * self.machine.mean_prompt_tokens

    @cached_property
    def training_tokens(self) -> float:
        """Trained."""
        return self._column_sum("tokens")

    @cached_property
    def training_chip_hours(self) -> float:
        """Of chips while they trained, without saving, starting and idling."""
        return self._column_sum("chips_at_work_s") / HOUR_S

    @cached_property
    def freed_chip_hours(self) -> float:
        """Of chips out of serving and not called back, whatever they did."""
        lent_s = sum(map(self._column_sum, ("paused_s", "training_s", "idle_s")))
        return lent_s * self.machine.group_chips / HOUR_S

    @property
    def freed_share(self) -> float:
        """Of all group-hours."""
        length_h = self.walk.demand.length_s / HOUR_S
        group_hours = length_h * self.machine.machines * self.machine.groups
        return self.freed_chip_hours / (group_hours * self.machine.group_chips)

    @property
    def freed_share_of_peak(self) -> float:
        """Mean share not serving of the groups that served at the highest demand."""
        serving_s = self.walk.column("serving_s")
        return 1 - float(serving_s.mean() / serving_s[self.walk.demand.arrivals.argmax()])

    @cached_property
    def chip_watts(self) -> Float64s:
        """Of all chips, [intervals]."""
        return self.machine.machines * self.machine.chip_watts(self.walk)

    @cached_property
    def facility_watts(self) -> Float64s:
        """At the utility's meter, [intervals]."""
        return self.machine.machines * self.machine.facility_watts(
            self.machine.chip_watts(self.walk)
        )

    @cached_property
    def energy_mwh(self) -> float:
        """At the utility's meter."""
        return float(self.facility_watts.sum()) * self.walk.demand.interval_s / JOULES_PER_MWH

    @property
    def output_tokens_per_mwh(self) -> float:
        """Served."""
        return self.served_output_tokens / self.energy_mwh

    @property
    def training_tokens_per_mwh(self) -> float:
        """Trained, over the energy of everything."""
        return self.training_tokens / self.energy_mwh

    @property
    def served_flops(self) -> float:
        """Model flops of prompts and replies."""
        return self.served_requests * self.machine.flops_per_request

    @property
    def training_flops(self) -> float:
        """Model flops of trained tokens, forward and backward."""
        return self.training_tokens * self.machine.trained.flops_per_token

    @property
    def flops_per_mwh(self) -> float:
        """Both, over the energy of everything: the sum that weighs tokens by their flops."""
        return (self.served_flops + self.training_flops) / self.energy_mwh

    @property
    def value(self) -> float:
        """What was served and trained in the machine's unit, over the energy of everything."""
        return self.machine.value(self.served_requests, self.training_tokens, self.energy_mwh)
