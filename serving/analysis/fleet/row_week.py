"""A row of machines walked over the days: one machine's walk, and how many there are of it.

Machines that work are alike and share the row's requests evenly; one that returns is as the others
are (assumed). Their requests are whole numbers in each interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emulator.faults.goodput import goodput
from serving.analysis.day.day_comparison import DayQuestion
from serving.analysis.day.day_demand import day_demand
from serving.analysis.day.day_result import DayMachine, DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.day_walk import DayWalk, walk
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.analysis.fleet.fleet_plan import FailureClass, FleetRow
from serving.analysis.fleet.outages import outages
from serving.analysis.fleet.row_duty import RowDuty, row_duty
from serving.analysis.fleet.row_power import RowPower
from serving.policy.day_night.policy_text import parse_policy

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTask:
    """A row of one building.

    Attributes:
        first_machine: its number in the fleet.
        peak_share: of what the machines that are no spares serve within the target.
        pue: of each hour, [hours].
        cap_watts: of the row at the meter in each hour, [hours]; None without a cap.
    """

    building: str
    row: FleetRow
    first_machine: int
    peak_share: float
    pue: Float64s
    cap_watts: Float64s | None
    failures: tuple[FailureClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowWeek:
    """A row's days, [intervals] each.

    Attributes:
        result: of one machine that works all the time and is never paused.
        running: working machines whose job is not paused.
        arrived, served, kept: requests; kept within both limits.
        waiting: requests, at the interval's end.
        tokens: trained and kept, after failures and pauses.
        tokens_possible: if all machines that are no spares worked and none was paused.
        failures: by the class's name.
        goodput_share: of a job's time that is useful between failures of its machine.
    """

    task: RowTask
    result: DayResult
    duty: RowDuty
    running: Int64s
    it_watts: Float64s
    meter_watts: Float64s
    arrived: Float64s
    served: Float64s
    kept: Float64s
    waiting: Float64s
    tokens: Float64s
    tokens_possible: Float64s
    failures: Mapping[str, int]
    goodput_share: float

    @property
    def chips(self) -> int:
        """Of one machine."""
        return self.result.machine.system.chips.count

    def chip_uses(self) -> dict[str, Float64s]:
        """Chips by use, which sum to the row's, [intervals] each."""
        walk, machine, duty = self.result.walk, self.result.machine, self.duty
        per_second = machine.group_chips / walk.demand.interval_s
        serving = duty.working * walk.column("serving_s") * per_second
        training = self.running * walk.column("training_s") * per_second
        return {
            "serving": serving,
            "training": training,
            "ready or on the way": (duty.working + duty.hot) * self.chips - serving - training,
            "off": np.asarray((duty.off + duty.shed) * self.chips, dtype=np.float64),
            "out of service": np.asarray(duty.out * self.chips, dtype=np.float64),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowWalker:
    """Walks rows of one system; what a wish does to a machine's groups is found once for all."""

    machine: DayMachine
    handover: GroupHandover
    question: DayQuestion
    outcomes: LookOutcomes

    def row_week(self, task: RowTask) -> RowWeek:
        """Raises ConfigError for a cap that holds no machine."""
        question, row, terms = self.question, task.row, self.question.terms
        power = RowPower(
            machine=self.machine,
            handover=self.handover,
            row=row,
            pue=task.pue,
            cap_watts=task.cap_watts,
        )
        found = outages(
            task.failures,
            self.machine.system,
            range(task.first_machine, task.first_machine + row.machines),
            looks=round(question.length_s / terms.look_s),
            look_s=terms.look_s,
            seed=terms.seed,
        )
        result, arrived, duty = self._below_cap(task, power, found.out)
        running = power.running(result.walk, duty)
        it_watts = power.row_it_watts(result.walk, duty, running)
        useful = useful_share(self.machine.trained, task.failures, self.machine)
        possible = result.walk.column("tokens")
        return RowWeek(
            task=task,
            result=result,
            duty=duty,
            running=running,
            it_watts=it_watts,
            meter_watts=it_watts * np.repeat(task.pue, len(it_watts) // len(task.pue)),
            arrived=arrived,
            served=duty.working * result.walk.served,
            kept=duty.working * result.kept("both_share"),
            waiting=duty.working * result.walk.backlog,
            tokens=useful * possible * running
            - pause_tokens(self.machine.trained, result.walk, duty.working, running),
            tokens_possible=possible * row.slots,
            failures=found.failures,
            goodput_share=useful,
        )

    def _below_cap(
        self, task: RowTask, power: RowPower, out: Int64s
    ) -> tuple[DayResult, Float64s, RowDuty]:
        """One machine's walk, the row's requests, [intervals], and duties that the cap holds.

        Where it does not hold all machines' serving, as many work as it holds at the draws of the
        walk before, until none of its hours is above it: fewer machines each draw more.
        """
        terms, least = self.question.terms, power.surely_held()
        limit = np.full(len(task.pue), task.row.slots)
        looks_per_hour = round(HOUR_S / terms.look_s)
        while True:
            decided = row_duty(task.row, out, limit, looks_per_hour=looks_per_hour)
            duty = decided.by_interval(terms.look_intervals)
            result, arrived = self._walked(task, decided.working, duty)
            held = power.held(result.walk, duty)
            most = decided.working.reshape(-1, looks_per_hour).max(axis=1)  # [hours]
            lower = np.where(most > held, np.maximum(held, least), limit)
            if (lower == limit).all():
                return result, arrived, duty
            limit = lower

    def _walked(self, task: RowTask, working: Int64s, duty: RowDuty) -> tuple[DayResult, Float64s]:
        """One machine's walk, and the row's requests, [intervals], by the `working` ones, [looks].

        Those that come or wait while no machine works are lost.
        """
        question = self.question
        demand = day_demand(
            question.trace.scaled(task.peak_share * self.machine.capacity_per_s),
            begin_s=question.begin_s,
            length_s=question.length_s,
            terms=question.terms,
            cold=question.cold,
        )
        offered = task.row.slots * demand.arrivals
        each = np.rint(offered / np.maximum(duty.working, 1)).astype(np.int64)
        each[duty.working == 0] = 0
        policy = parse_policy(question.policies[0])
        walked = walk(
            replace(demand, arrivals=each),
            self.machine.curve,
            self.outcomes,
            policy,
            machines=np.maximum(working, 1),
        )
        arrived = np.where(duty.working, duty.working * each, offered).astype(np.float64)
        result = DayResult(
            machine=self.machine, walk=walked, policy=str(policy), describes=policy.describe()
        )
        return result, arrived


def row_walker(machine: DayMachine, handover: GroupHandover, question: DayQuestion) -> RowWalker:
    """Of the question's first policy."""
    outcomes = LookOutcomes(
        trained=machine.trained,
        handover=handover,
        group_idle_watts=machine.curve.idle_watts,
        interval_s=question.terms.interval_s,
        look_s=question.terms.look_s,
    )
    return RowWalker(machine=machine, handover=handover, question=question, outcomes=outcomes)


def useful_share(
    trained: TrainingYield, failures: Sequence[FailureClass], machine: DayMachine
) -> float:
    """Of the time of a job on all of a machine that saves as often as is best; 1 without failures.

    Any failure of the machine stops the job; spares take over, so that it restarts at once.
    """
    per_hour = sum(1 / each.machine_mtbf_hours(machine.system) for each in failures)
    if not per_hour:
        return 1.0
    found = goodput(
        chips=1,
        chip_mtbf_s=HOUR_S / per_hour,
        save_s=float(trained.save_s[-1]),
        restart_s=float(trained.start_s[-1]),
    )
    return found.useful_share


def pause_tokens(
    trained: TrainingYield, walked: DayWalk, working: Int64s, running: Int64s
) -> Float64s:
    """Not trained because jobs save as they are paused, and start again, [intervals]."""
    at_job_s = walked.column("training_s") + walked.column("paused_s")
    groups = np.rint(at_job_s / walked.demand.interval_s).astype(np.int64)
    paused = working - running
    saving = np.maximum(np.diff(paused, prepend=paused[:1]), 0)
    starting = np.maximum(np.diff(running, prepend=running[:1]), 0)
    seconds = saving * trained.save_s[groups] + starting * trained.start_s[groups]
    tokens: Float64s = seconds * trained.tokens_per_s[groups]
    return tokens
