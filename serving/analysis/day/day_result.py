"""Result of a day under one policy: service, training, hand-overs, energy."""

from dataclasses import dataclass
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
from serving.analysis.day.day_walk import DayWalk
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.training_yield import TrainingYield

Float64s = NDArray[np.float64]

JOULES_PER_MWH: Final = 3.6e9
_FLOPS_SAMPLE: Final = 2_000


@dataclass(frozen=True, kw_only=True, eq=False)
class DayMachine:
    """`machines` systems in groups of `group_chips`; `flops_per_request` is a mean."""

    system: SystemSpec
    machines: int
    group_chips: int
    curve: ReplicaCurve
    trained: TrainingYield
    mean_prompt_tokens: float
    mean_output_tokens: float
    flops_per_request: float
    season: Season = Season.PEAK

    @property
    def groups(self) -> int:
        """Of all machines."""
        return self.trained.groups

    @property
    def chips(self) -> int:
        """Of all machines, those outside of groups too."""
        return self.machines * self.system.chips.count

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of all groups within the target."""
        return self.groups * self.curve.capacity_per_s

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
        """Watts at the utility's meter for the chip watts of all machines, [intervals]."""
        base, slope = self._facility_line
        watts: Float64s = self.machines * base + slope * chip_watts
        return watts

    def chip_watts(self, walk: DayWalk) -> Float64s:
        """Mean of all chips in each interval, [intervals]."""
        interval_s = walk.demand.interval_s
        at_work_s = walk.column("serving_s") + walk.column("leaving_s")
        serving = self.curve.chip_watts(walk.group_rates) * at_work_s / interval_s
        left_over = self.chips - self.groups * self.group_chips
        idle = left_over * self.system.chip.idle_watts.value
        watts: Float64s = serving + walk.column("joules") / interval_s + idle
        return watts


def mean_request_flops(model: ModelSpec, lengths: ObservedLengths) -> float:
    """Mean flops of a request, over all lengths or an even sample of many."""
    seen = len(lengths.prompt_tokens)
    which = np.unique(np.linspace(0, seen - 1, min(seen, _FLOPS_SAMPLE)).astype(np.int64))
    pairs = zip(lengths.prompt_tokens[which], lengths.output_tokens[which], strict=True)
    each = [
        served_flops(model, prompt_tokens=int(prompt), output_tokens=int(output))
        for prompt, output in pairs
    ]
    return float(np.mean(each))


@dataclass(frozen=True, kw_only=True, eq=False)
class DayResult:
    """One policy on one day at one load."""

    machine: DayMachine
    walk: DayWalk
    describes: str

    @property
    def policy(self) -> str:
        """As a user writes it."""
        return self.walk.policy

    @cached_property
    def requests(self) -> int:
        """Arrived."""
        return int(self.walk.demand.arrivals.sum())

    def attainment(self, name: str) -> float:
        """Share of the requests with `ttft_share`, `tpot_share` or `both_share` kept; 1 of none.

        Late ones miss TTFT, moved ones both limits (assumed).
        """
        if not self.requests:
            return 1.0
        shares = self.machine.curve.share(name, self.walk.group_rates)
        arrivals = self.walk.demand.arrivals
        in_time = arrivals if name == "tpot_share" else arrivals - self.walk.late
        kept = float((in_time * shares).sum()) - self.walk.moved
        return max(0.0, kept / self.requests)

    @cached_property
    def slo_attainment(self) -> float:
        """Share of the requests that kept both limits."""
        return self.attainment("both_share")

    @property
    def keeps_target(self) -> bool:
        """Whether the required share kept both limits."""
        return self.slo_attainment >= self.machine.curve.required_share

    @cached_property
    def served_requests(self) -> float:
        """Served by the end of the day."""
        return float(self.walk.served.sum())

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
        """Trained, without those lost by a killed job."""
        return float(self.walk.column("tokens").sum()) - self.walk.totals.tokens_undone

    @cached_property
    def training_chip_hours(self) -> float:
        """Of chips while they trained, without saving, starting and idling."""
        return float(self.walk.column("chips_at_work_s").sum()) / HOUR_S

    @cached_property
    def freed_chip_hours(self) -> float:
        """Of chips out of serving and not called back, whatever they did."""
        lent_s = sum(self.walk.column(name).sum() for name in ("paused_s", "training_s", "idle_s"))
        return float(lent_s) * self.machine.group_chips / HOUR_S

    @property
    def freed_share(self) -> float:
        """Of all group-hours."""
        length_h = self.walk.demand.length_s / HOUR_S
        return self.freed_chip_hours / (length_h * self.machine.groups * self.machine.group_chips)

    @property
    def freed_share_of_peak(self) -> float:
        """Mean share not serving of the groups that served at the highest demand."""
        serving_s = self.walk.column("serving_s")
        return 1 - float(serving_s.mean() / serving_s[self.walk.demand.arrivals.argmax()])

    @cached_property
    def chip_watts(self) -> Float64s:
        """Of all chips, [intervals]."""
        return self.machine.chip_watts(self.walk)

    @cached_property
    def facility_watts(self) -> Float64s:
        """At the utility's meter, [intervals]."""
        return self.machine.facility_watts(self.chip_watts)

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
