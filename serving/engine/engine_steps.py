"""The steps of a running engine: each is computed, costed, and held until its emulated end.

During a long wait `go_on` returns None, so that the loop takes control calls, aborts and requests.

| the step is | waits until | then |
|---|---|---|
| not computed | a chip that fell silent is given up, or healed | the chips compute it |
| computed | its emulated end: a pause, its own duration | it is counted, its tokens go on |

A step whose requests are all gone ends at once; the next one stands the rest of its pause.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.step import RankStep
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from serving.engine.deployment import Deployment
from serving.engine.engine_meters import EngineMeters
from serving.engine.engine_time import EngineTime
from serving.engine.expert_moves import ExpertMoves
from serving.engine.live_machine import LiveMachine, LiveStep
from serving.engine.live_recording import LiveRecording
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_batch import seen_tokens, step_batch, without_ranks
from serving.wire.machine_state import StallState

WAIT_WALL_S_MAX: Final = 0.25
"""Longest single wait, in wall seconds, for a step's end; it delays control calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """A computed step; `pause_ns` precedes it.

    The pause includes a silence that the step met, or (`after_silence`) that began before it.
    """

    live: LiveStep
    cost: StepCost
    batch: StepBatch
    counted: ExpertLoads | None
    output_tokens: int
    pause_ns: int
    wall_s: float
    met_silence: bool
    after_silence: bool


@dataclass(slots=True, kw_only=True)
class _HeldStep:
    """A step under way since `begin_ns`; `computed` is None until the chips have computed it.

    A `batch` is a step of work alone, without `steps`.
    """

    steps: Sequence[RankStep] = ()
    bitmasks: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    batch: StepBatch | None = None
    queues: tuple[RankQueues, ...]
    begin_ns: int
    computed: _Computed | None = None


class EngineSteps:
    """Steps of one engine: at most one is under way; each is counted once in time and energy."""

    def __init__(
        self,
        deployment: Deployment,
        live: LiveMachine,
        *,
        time: EngineTime,
        experts: ExpertMoves,
        recording: LiveRecording,
        meters: EngineMeters,
    ) -> None:
        self._deployment = deployment
        self._live = live
        self._time = time
        self._experts = experts
        self._recording = recording
        self._meters = meters
        self._held: _HeldStep | None = None
        self.held_until_ns = 0  # no step computes before; in the past when nothing holds it up
        self._no_less_ns = 0  # what the machine is held up for beside a silence that it goes with

    @property
    def under_way(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._held is not None

    def hold(self, duration_ns: int) -> None:
        """Delay the beginning of the next step by `duration_ns`."""
        if duration_ns:
            if self._no_less_ns > self._time.now_ns:
                self._no_less_ns += duration_ns
            self.held_until_ns = max(self.held_until_ns, self._time.now_ns) + duration_ns

    def hold_until(self, until_ns: int) -> None:
        """Let no step begin before a time."""
        self.held_until_ns = max(self.held_until_ns, until_ns)

    def silence_over(self, cut_ns: int) -> None:
        """Shorten the stall by `cut_ns`, as a silent chip is healed; other stalls stay."""
        held, now_ns = self._held, self._time.now_ns
        if held is not None and held.computed is None:
            self.held_until_ns = max(self.held_until_ns, now_ns)
        if not cut_ns:
            return
        done = held.computed if held is not None else None
        if held is not None and done is not None and (done.met_silence or done.after_silence):
            least_ns = max(0, self._no_less_ns - held.begin_ns, done.pause_ns - cut_ns)
            held.computed = replace(done, pause_ns=min(done.pause_ns, least_ns))
        if done is None or not done.met_silence:
            no_less_ns = max(self._no_less_ns, min(now_ns, self.held_until_ns))
            self.held_until_ns = max(no_less_ns, self.held_until_ns - cut_ns)

    def begin(
        self,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
        queues: tuple[RankQueues, ...],
        *,
        continues: bool,
    ) -> LiveStep | None:
        """Begin a step, and go on with it; for `continues` see `StepPacer`."""
        begin_ns = self._begin_ns(continues=continues)
        self._held = _HeldStep(steps=steps, bitmasks=bitmasks, queues=queues, begin_ns=begin_ns)
        return self.go_on()

    def begin_work(
        self, batch: StepBatch, queues: tuple[RankQueues, ...], *, continues: bool
    ) -> LiveStep | None:
        """`begin` a step of which the machine has the work alone, and computes no token."""
        begin_ns = self._begin_ns(continues=continues)
        self._held = _HeldStep(batch=batch, queues=queues, begin_ns=begin_ns)
        return self.go_on()

    def _begin_ns(self, *, continues: bool) -> int:
        assert self._held is None, "the last step has not ended"
        return self._time.begin_ns(continues=continues)

    def go_on(self, *, abandoned: bool = False) -> LiveStep | None:
        """Go on with the step; None, after a short rest, while it waits; `abandoned`: end now."""
        held = self._held
        assert held is not None, "no step is under way"
        if held.computed is None:
            silence = self._live.silence
            if silence is not None and not abandoned and self._is_far(silence.until_ns):
                return None
            held.computed = self._compute(held)
        done = held.computed
        end_ns = held.begin_ns + done.pause_ns + done.cost.duration_ns
        if not abandoned and self._is_far(end_ns):
            return None
        if abandoned:
            done = self._carry_pause(held, done)
        self._finish(done, held.begin_ns, held.queues, is_warm_up=False)
        self._held = None
        return done.live

    def _is_far(self, deadline_ns: int) -> bool:
        """Whether a deadline is too far to wait for it here; rests a moment if so."""
        is_far = self._time.wall_left_s(deadline_ns) > WAIT_WALL_S_MAX
        if is_far:
            self._time.rest()
        return is_far

    def _carry_pause(self, held: _HeldStep, done: _Computed) -> _Computed:
        """Carry the rest of the pause over to the next step."""
        passed_ns = self._time.now_ns - held.begin_ns - done.cost.duration_ns
        pause_ns = min(done.pause_ns, max(0, passed_ns))
        if pause_ns < done.pause_ns:
            if done.met_silence:
                self._no_less_ns = self.held_until_ns
            self.held_until_ns = max(self.held_until_ns, held.begin_ns + done.pause_ns)
        return replace(done, pause_ns=pause_ns)

    def warm_up(
        self, steps: Sequence[RankStep], queues: tuple[RankQueues, ...], *, continues: bool
    ) -> tuple[LiveStep, StepCost]:
        """Compute a warm-up step and wait for its end.

        A long pause is left to the next step, which begins when the warm-up would have ended after
        it: how long a wait is for the host changes no time.
        """
        begin_ns = self._time.begin_ns(continues=continues)
        held = _HeldStep(steps=steps, queues=queues, begin_ns=begin_ns)
        done = self._compute(held, is_warm_up=True)
        if self._time.wall_left_s(begin_ns + done.pause_ns) > WAIT_WALL_S_MAX:
            done = self._carry_pause(held, done)
            self.hold(done.cost.duration_ns)
        self._finish(done, begin_ns, queues, is_warm_up=True)
        return done.live, done.cost

    def _compute(self, held: _HeldStep, *, is_warm_up: bool = False) -> _Computed:
        work_ns = max(held.begin_ns, self.held_until_ns)
        silent_ns = self._live.silence_left_ns()
        started = time.perf_counter()
        if is_warm_up:
            live = self._live.warm_up(held.steps)
        else:
            live = self._live.step(held.steps, held.bitmasks, begin_ns=work_ns)
        outputs, loads = live.result.outputs, live.result.loads
        if held.batch is None:
            computed = [step for step in held.steps if step.rank in outputs]
            batch = step_batch(computed, outputs, self._deployment.partition.ranks)
            output_tokens = seen_tokens(computed, outputs)
        else:
            batch = without_ranks(held.batch, live.lost_ranks)
            output_tokens = int(batch.logit_rows.sum())
        self._experts.after_step(live.result, batch)
        wall_s = time.perf_counter() - started
        met_silence = self._live.silence_left_ns() > silent_ns
        counted = loads if self._deployment.same_model else None
        cost = live.costing.cost(batch, counted)
        self._time.computed()
        # An attempt that broke off is charged as whole: where in it the chip was lost is not known.
        again_ns = live.repeats * cost.duration_ns
        return _Computed(
            live=live,
            cost=cost,
            batch=batch,
            counted=counted,
            output_tokens=output_tokens,
            pause_ns=work_ns - held.begin_ns + live.pause_ns + again_ns,
            wall_s=wall_s,
            met_silence=met_silence,
            after_silence=silent_ns > 0,
        )

    def _finish(
        self, done: _Computed, begin_ns: int, queues: tuple[RankQueues, ...], *, is_warm_up: bool
    ) -> None:
        chips = done.live.seating.chip_of_position
        recording = self._recording.current
        if recording is not None:
            recording.add(
                done.cost,
                done.batch,
                costing=done.live.costing,
                loads=done.counted,
                begin_ns=begin_ns + done.pause_ns,
                pause_ns=done.pause_ns,
                chips=chips,
                queues=queues,
            )
        self._time.finish(
            begin_ns,
            done.cost.duration_ns,
            pause_ns=done.pause_ns,
            compute_wall_s=done.wall_s,
        )
        self._meters.after_step(
            done.cost,
            done.batch,
            chips,
            begin_ns=begin_ns,
            end_ns=self._time.accounted_ns,
            output_tokens=None if is_warm_up else done.output_tokens,
        )

    def stall(self) -> StallState | None:
        """Until when nothing is computed, and why; None while the machine is free to."""
        if not self._time.passes:
            return None
        until_ns, reason = self.held_until_ns, "it reads weights, or changes what it holds"
        held, silence = self._held, self._live.silence
        if held is not None and held.computed is not None:
            until_ns = max(until_ns, held.begin_ns + held.computed.pause_ns)
        recovering = self._live.faults.recovering
        if recovering:
            names = ", ".join(f"{each.number} ({each.fault.kind})" for each in recovering)
            reason = f"it recovers from fault {names}"
        if silence is not None:
            until_ns = max(until_ns, silence.until_ns + silence.reading_ns)
            reason = f"chip {silence.chip} does not answer, and is not given up yet"
        left_ns = until_ns - self._time.now_ns
        if left_ns <= 0:
            return None
        return StallState(
            until_emulated_s=until_ns / NS_PER_S,
            left_s=left_ns / NS_PER_S,
            wall_left_s=self._time.wall_left_s(until_ns),
            reason=f"the machine stands still: {reason}",
        )
