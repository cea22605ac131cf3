"""How a job's work passes emulated time.

At the pace `real` a step takes what the cost model says of its batch. A host that computes it too
late makes lag, in which the emulated chips train nothing.

With `fast-forward` the emulated chips train by the clock, as a simulated job with the usual recipe
does: they start, read, step and save at its times and joules. What the host computes meanwhile is a
sample of that, never more than the chips have trained by then. Evaluations and checkpoints of the
sample take no emulated time; the last save does.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from emulator.memory.training_memory import check_training_fits
from emulator.sim.clock import Clock
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.server.training.checkpoint import CheckpointState
from serving.server.training.job_spec import JobSpec, TrainingPace
from serving.server.training.job_timing import Spell, job_terms, job_timing
from serving.simulator.job_cost import JobTerms, best_job
from serving.simulator.simulated_job import SimulatedJob

Looks = Callable[[CheckpointState], bool]
"""Receives the state while a job waits; returns whether it is to go on waiting."""

_LOOK_WALL_S: Final = 1.0
"""A waiting job shows a sign of life so often."""


class JobPace(Protocol):
    """Passes emulated time; each state that it returns has the time that has passed by then.

    `described`: what passes, in a line; `stop_ns`: the longest emulated time from asking the job to
    stop until it has saved; `watts`: of all chips, now.
    """

    described: str
    hbm_bytes_per_chip: int
    stop_ns: int
    watts: float

    def begin(self, state: CheckpointState) -> None:
        """Chips begin, or begin again, from `state`."""
        ...

    def wait(self, state: CheckpointState, looks: Looks) -> CheckpointState:
        """Wait until a step may be computed."""
        ...

    def stepped(self, state: CheckpointState) -> CheckpointState:
        """A step was computed."""
        ...

    def evaluated(self, state: CheckpointState, tokens: int) -> CheckpointState:
        """A held-out loss was computed."""
        ...

    def saved(self, state: CheckpointState) -> CheckpointState:
        """A checkpoint is written."""
        ...

    def end(self, state: CheckpointState) -> CheckpointState:
        """The job ends; the last checkpoint holds what is returned."""
        ...

    def hold(self, state: CheckpointState, looks: Looks) -> None:
        """Wait until the emulated end is over."""
        ...


class RealPace:
    """Every step is computed, and takes what the cost model says of its batch."""

    def __init__(self, spec: JobSpec, clock: Clock) -> None:
        self._batch_tokens = spec.batch_tokens
        self._timing = timing = job_timing(spec)
        self._pacer = StepPacer(clock)
        self.described = timing.described
        self.hbm_bytes_per_chip = timing.hbm_bytes_per_chip
        evaluated = timing.evaluation(spec.eval_sequences * spec.sequence_tokens)
        self.stop_ns = sum(
            spell.duration_ns for spell in (timing.step, evaluated, timing.checkpoint)
        )
        self.watts = 0.0

    def begin(self, state: CheckpointState) -> None:
        """From now on its chips draw a step's power."""
        del state
        self.watts = self._timing.step.watts

    def wait(self, state: CheckpointState, looks: Looks) -> CheckpointState:
        """Steps follow each other."""
        del looks
        return state

    def stepped(self, state: CheckpointState) -> CheckpointState:
        """It takes its time, and what it is late."""
        after = self._pass(state, self._timing.step)
        return replace(
            after,
            trained_steps=state.trained_steps + 1,
            trained_tokens=state.trained_tokens + self._batch_tokens,
        )

    def evaluated(self, state: CheckpointState, tokens: int) -> CheckpointState:
        """Forward passes of `tokens` tokens."""
        return self._pass(state, self._timing.evaluation(tokens))

    def saved(self, state: CheckpointState) -> CheckpointState:
        """Chips wait for their drives."""
        return self._pass(state, self._timing.checkpoint)

    def _pass(self, state: CheckpointState, spell: Spell) -> CheckpointState:
        paced = self._pacer.finish(self._pacer.begin_ns(continues=True), spell.duration_ns)
        return replace(
            state,
            emulated_ns=state.emulated_ns + spell.duration_ns,
            joules=state.joules + spell.joules,
            lag_ns=state.lag_ns + paced.lag_ns,
        )

    def end(self, state: CheckpointState) -> CheckpointState:
        """It has passed all its time."""
        return state

    def hold(self, state: CheckpointState, looks: Looks) -> None:
        """Nothing is left to wait for."""


class FastForward:
    """A simulated job that goes by `clock`, which follows the wall, from its beginning on.

    Raises HbmExhausted where no training state fits the job's chips.
    """

    def __init__(self, spec: JobSpec, terms: JobTerms, clock: Clock) -> None:
        system, model, self._chips = terms.system, terms.model, spec.system_chips
        cost = best_job(terms, self._chips)
        recipe = terms.recipe if cost is None else cost.recipe
        self.hbm_bytes_per_chip = check_training_fits(system, model, spec.chips, recipe).chip_bytes
        assert cost is not None, recipe
        self.described = (
            f"the chips train {model.name} by the clock: {cost.step_tokens:,} tokens in "
            f"{cost.step_s:.4g} emulated s"
        )
        self.stop_ns = cost.step_ns + cost.save.duration_ns
        self._batch_tokens = spec.batch_tokens
        self._clock = clock
        self._new_job = partial(
            SimulatedJob,
            lambda _: cost,
            start_s=terms.start_s,
            idle_chip_watts=system.chip.idle_watts.value,
        )
        self._job = self._new_job()
        self._from: CheckpointState | None = None
        self._ends_ns = 0
        self.watts = 0.0

    def begin(self, state: CheckpointState) -> None:
        """At first from the clock's beginning, then from now on; what was not saved is lost."""
        if self._from is not None:
            self._job = self._new_job()
            self._job.advance(self._clock.now_ns())
        self._from, self._ends_ns = state, 0
        self._job.start(self._chips)

    def wait(self, state: CheckpointState, looks: Looks) -> CheckpointState:
        """Until the chips have trained as many tokens as the host will have computed."""
        while (now := self._now(state)).trained_tokens < now.tokens + self._batch_tokens:
            if not looks(now):
                break
            self._rest()
        return now

    def _rest(self, until_ns: float = math.inf) -> None:
        look_ns = self._clock.now_ns() + round(_LOOK_WALL_S / self._clock.dilation * NS_PER_S)
        self._clock.wait_until_ns(int(min(until_ns, look_ns)))

    def stepped(self, state: CheckpointState) -> CheckpointState:
        """Whatever the clock says has passed."""
        return self._now(state)

    def evaluated(self, state: CheckpointState, tokens: int) -> CheckpointState:
        """The chips go on meanwhile."""
        del tokens
        return self._now(state)

    def saved(self, state: CheckpointState) -> CheckpointState:
        """The chips go on meanwhile."""
        return self._now(state)

    def _now(self, state: CheckpointState) -> CheckpointState:
        if not self._ends_ns:
            self._job.advance(self._clock.now_ns())
            self.watts = self._job.watts
        return self._counted(state)

    def _counted(self, state: CheckpointState) -> CheckpointState:
        assert self._from is not None, "it has not begun"
        work = self._job.work
        return replace(
            state,
            trained_steps=self._from.trained_steps + work.steps,
            trained_tokens=self._from.trained_tokens + work.tokens,
            emulated_ns=self._from.emulated_ns + work.alive_ns,
            joules=self._from.joules + work.joules,
        )

    def end(self, state: CheckpointState) -> CheckpointState:
        """The chips finish their step and save, which may end later than now."""
        self._now(state)
        self._job.stop()
        self.watts = self._job.watts
        self._ends_ns = self._job.ready_ns or 0
        self._job.advance(self._ends_ns)
        return self._counted(state)

    def hold(self, state: CheckpointState, looks: Looks) -> None:
        """Until the chips have saved."""
        while self._clock.now_ns() < self._ends_ns:
            self._rest(self._ends_ns)
            looks(state)


def job_pace(spec: JobSpec, clock: Clock) -> JobPace:
    """The pace of `spec`.

    Raises ConfigError for a model, system or chips that the catalog has not, HbmExhausted for a
    training state that does not fit.
    """
    if spec.pace == TrainingPace.FAST_FORWARD:
        return FastForward(spec, job_terms(spec), clock)
    return RealPace(spec, clock)
