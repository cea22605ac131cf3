"""Records the steps of a run while someone profiles it: a bounded ring, and a sample to cost anew.

What a step leaves is kept as it is, by reference, and becomes a record when it is asked for; so
recording takes little of a step. Of each phase a few steps keep their batch and the machine that
they ran on, chosen so that each of the phase's steps is as likely: they answer how long the step
would have taken if something of the machine were faster.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCost
from emulator.ultraserver.what_if import what_if_ns
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_batch import Int64s, prefill_and_decode_tokens
from serving.wire.step_record import (
    EngineBusy,
    StepPage,
    StepPhase,
    StepRecord,
    StepWhatIf,
    phase_of,
)

STEPS_DEFAULT: Final = 4_000
STEPS_MAX: Final = 50_000
"""At most so many steps are kept; on 144 chips about 1 GB of the engine's memory."""

PAGE_NUMBERS_MAX: Final = 64_000
"""A page of records has about so many numbers: half a megabyte, and milliseconds to make, which
the engine's next step has to wait."""

SAMPLES_PER_PHASE: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kept:
    """What one step left in the ring."""

    cost: StepCost
    tokens: tuple[Int64s, Int64s]  # of prompts, of decodes: each [ranks]
    begin_ns: int
    pause_ns: int
    chips: Int64s  # [positions]
    queues: Sequence[RankQueues]

    @property
    def numbers(self) -> int:
        """How many its record has, about."""
        return len(self.chips) * (len(self.cost.engine_ns) + 5) + 5 * len(self.tokens[0])

    def record(self, step: int) -> StepRecord:
        """It as a record with the number `step`."""
        cost, (prefill_tokens, decode_tokens) = self.cost, self.tokens
        return StepRecord(
            step=step,
            begin_ns=self.begin_ns,
            pause_ns=self.pause_ns,
            duration_ns=cost.duration_ns,
            prefill_tokens=tuple(prefill_tokens.tolist()),
            decode_tokens=tuple(decode_tokens.tolist()),
            requests_running=tuple(queue.running for queue in self.queues),
            requests_waiting=tuple(queue.waiting for queue in self.queues),
            kv_blocks_used=tuple(queue.kv_blocks_used for queue in self.queues),
            chips=tuple(self.chips.tolist()),
            engines=tuple(
                EngineBusy(engine=name, busy_ns=tuple(busy_ns.tolist()))
                for name, busy_ns in cost.engine_ns.items()
            ),
            watts=tuple(cost.chip_watts.tolist()),
            flops=tuple(cost.flops.tolist()),
            hbm_bytes=tuple(cost.hbm_bytes.tolist()),
            link_bytes=tuple(cost.link_bytes.tolist()),
            parts_ns={name: float(part_ns) for name, part_ns in cost.parts_ns.items()},
            bound=dict(cost.bound),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sampled:
    """A step that can be costed again."""

    step: int
    costing: StepCosting
    batch: StepBatch
    loads: ExpertLoads | None


class StepRecording:
    """The last `steps_max` steps since it began; raises ConfigError for none, or too many.

    Invariants: `count` steps were added, the last `len(self)` of them are there, `dropped` are not.
    """

    def __init__(self, number: int, steps_max: int = STEPS_DEFAULT) -> None:
        if not 1 <= steps_max <= STEPS_MAX:
            raise ConfigError("steps", steps_max, f"1 to {STEPS_MAX:,}")
        self.number = number
        self.count = 0
        self.on = True
        self._kept: deque[_Kept] = deque(maxlen=steps_max)
        self._sampled: dict[StepPhase, list[_Sampled]] = {phase: [] for phase in StepPhase}
        self._seen = dict.fromkeys(StepPhase, 0)
        self._rng = np.random.default_rng(0)  # which steps are sampled; the same for the same run

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def dropped(self) -> int:
        """Steps that the ring had no room for: the first ones."""
        return self.count - len(self._kept)

    def add(
        self,
        cost: StepCost,
        batch: StepBatch,
        *,
        costing: StepCosting,
        loads: ExpertLoads | None,
        begin_ns: int,
        pause_ns: int,
        chips: Int64s,
        queues: Sequence[RankQueues],
    ) -> None:
        """Keep a step, unless the recording is over. Arrays must not change afterwards."""
        if not self.on:
            return
        tokens = prefill_and_decode_tokens(batch)
        self._kept.append(
            _Kept(
                cost=cost,
                tokens=tokens,
                begin_ns=begin_ns,
                pause_ns=pause_ns,
                chips=chips,
                queues=queues,
            )
        )
        prompt, decode = (int(counted.sum()) for counted in tokens)
        phase = phase_of(prompt, prompt + decode)
        sampled = _Sampled(step=self.count, costing=costing, batch=batch, loads=loads)
        self._sample(phase, sampled)
        self.count += 1

    def _sample(self, phase: StepPhase, step: _Sampled) -> None:
        """Keep each of a phase's steps with the same chance (reservoir sampling, algorithm R)."""
        chosen = self._sampled[phase]
        self._seen[phase] += 1
        if len(chosen) < SAMPLES_PER_PHASE:
            chosen.append(step)
            return
        place = int(self._rng.integers(self._seen[phase]))
        if place < SAMPLES_PER_PHASE:
            chosen[place] = step

    def page(self, first_step: int) -> StepPage:
        """Records from `first_step` on, or from the first that is left; empty at the end."""
        first = max(first_step, self.dropped)
        steps: list[StepRecord] = []
        numbers = 0
        for step in range(first, self.count):
            if numbers >= PAGE_NUMBERS_MAX:
                break
            kept = self._kept[step - self.dropped]
            steps.append(kept.record(step))
            numbers += kept.numbers
        return StepPage(steps=tuple(steps), next_step=first + len(steps))

    def records(self) -> tuple[StepRecord, ...]:
        """All records that are left."""
        steps: list[StepRecord] = []
        while (page := self.page(steps[-1].step + 1 if steps else 0)).steps:
            steps.extend(page.steps)
        return tuple(steps)

    @property
    def samples(self) -> int:
        """Steps that `what_if` can cost again."""
        return sum(map(len, self._sampled.values()))

    def what_if(self, sample: int, factor: float) -> StepWhatIf:
        """One sampled step with each resource `factor` times as fast; raises ConfigError."""
        if not 0 <= sample < self.samples:
            raise ConfigError("sample", sample, f"one of {self.samples} sampled steps")
        phase, step = [(phase, one) for phase in StepPhase for one in self._sampled[phase]][sample]
        return StepWhatIf(
            step=step.step,
            phase=phase,
            duration_ns=step.costing.cost(step.batch, step.loads).duration_ns,
            factor=factor,
            what_if_ns=what_if_ns(step.costing, step.batch, step.loads, factor=factor),
            samples=self.samples,
        )
