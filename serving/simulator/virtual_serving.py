"""Serves traffic in virtual time: compiled schedulers decide each step, the cost model times it.

No chips run, tokens are synthetic, and the host takes no time, so a run depends on the emulated
machine alone and repeats exactly. Every step is scheduled. The clock counts whole ns; requests that
arrive during a step wait for its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.traffic.engine_limits import EngineLimits
from serving.traffic.serving_run import Ending, ServingRun, missed_by

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

HOPE_STEPS: Final = 32
"""Steps between two checks of whether a level can still be met."""

EMPTY_STEPS_MAX: Final = 3
"""Steps without a token, one after another, after which nothing would ever change."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLog:
    """Each step of a run: its begin, what it lasts and costs, all [steps].

    `throttled_ns`: by how much a power limit lengthens it; `joules` are the chips'.
    """

    begin_ns: Int64s
    duration_ns: Int64s
    throttled_ns: Float64s
    joules: Float64s


def serve_in_virtual_time(
    traffic: Traffic,
    cost_model: StepCostModel,
    limits: EngineLimits,
    *,
    levels: Sequence[Bound] = (),
    among: Bools | None = None,
    until_s: float = float("inf"),
    on_step: StepWatcher | None = None,
) -> tuple[ServingRun, StepLog]:
    """Serve `traffic` on the cost model's partition until all requests, or those in the mask
    `among` [requests], have their tokens.

    Ends earlier when one of `levels` is certain to be missed by those requests, or when no step
    begins before `until_s`; the result says which. Levels change nothing else. `on_step` gets every
    step.

    Raises ConfigError for a request longer than the context or a rank's KV, and for an unknown
    prefill policy.
    """
    _refuse_what_never_fits(
        traffic, limits, limits.max_model_len or cost_model.model.max_context_tokens
    )
    judged = np.ones(len(traffic), dtype=np.bool_) if among is None else among
    serving = _VirtualServing(traffic, judged, cost_model, limits, on_step)
    ending = serving.serve(levels, until_ns=until_s * NS_PER_S)
    return serving.result(ending), serving.log()


def _refuse_what_never_fits(traffic: Traffic, limits: EngineLimits, max_model_len: int) -> None:
    """Raise ConfigError for requests that would wait for ever; an engine refuses them."""
    if not len(traffic):
        return
    total_tokens = traffic.prompt_tokens + traffic.output_tokens  # [requests]
    longest = int(total_tokens.argmax())
    tokens = int(total_tokens[longest])
    if tokens > max_model_len:
        raise ConfigError(
            field="max_model_len",
            value=max_model_len,
            expected=f"at least {tokens}, the tokens of request {longest} and its reply",
        )
    # The last token's keys and values are never written; one block is vLLM's own.
    needed = -(-(tokens - 1) // limits.block_tokens) + 1
    if needed > limits.kv_blocks_per_rank:
        raise ConfigError(
            field="kv_blocks_per_rank",
            value=limits.kv_blocks_per_rank,
            expected=f"at least {needed}, for the {tokens} tokens of request {longest}",
        )


class _VirtualServing:
    """One run: the clock and each request's tokens so far; about the `judged`, [requests]."""

    def __init__(
        self,
        traffic: Traffic,
        judged: Bools,
        cost_model: StepCostModel,
        limits: EngineLimits,
        on_step: StepWatcher | None,
    ) -> None:
        self._traffic = traffic
        self._cost_model = cost_model
        self._schedulers = LockstepSchedulers.of(traffic, limits, cost_model.partition.ranks)
        self._on_step = on_step
        self._now_ns = 0
        self._judged = judged
        self._judged_left = int(judged.sum())
        self._token_request = np.empty(int(traffic.output_tokens.sum()), dtype=np.int32)
        self._tokens = 0
        self._steps: list[tuple[int, int, float, float]] = []  # as the log
        self._step_tokens: list[int] = []
        self._idle_ns = 0
        self._kv_blocks_used_max = 0
        self._empty_steps = 0

    def serve(self, levels: Sequence[Bound], *, until_ns: float) -> Ending:
        """Step until the end; levels concern the judged requests."""
        schedulers = self._schedulers
        while self._judged_left:
            begin_ns = self._now_ns
            if not schedulers.requests:
                begin_ns = max(begin_ns, schedulers.next_arrival_ns)
            if begin_ns >= until_ns:
                return Ending.TIME_UP
            self._idle_ns += begin_ns - self._now_ns
            self._now_ns = begin_ns
            schedulers.admit(begin_ns)
            self._step()
            if len(self._steps) % HOPE_STEPS == 0 and self._is_hopeless(levels):
                return Ending.HOPELESS
        is_over = not np.isnan(schedulers.last_token_s).any()
        return Ending.SERVED if is_over else Ending.JUDGED

    def _step(self) -> None:
        """Schedule one lockstep, advance the clock by its time, and give out its tokens."""
        batch = self._schedulers.schedule()
        self._kv_blocks_used_max = max(
            self._kv_blocks_used_max, self._schedulers.kv_blocks_used_max
        )
        if not len(batch.rank):
            self._empty_steps += 1
            assert self._empty_steps < EMPTY_STEPS_MAX, "requests wait and no rank takes any"
            return
        self._empty_steps = 0
        cost = self._cost_model.cost(batch)
        if self._on_step is not None:
            queues = self._schedulers.queues
            self._on_step(cost, batch, begin_ns=self._now_ns, queues=queues)
        self._steps.append(
            (self._now_ns, cost.duration_ns, cost.parts_ns[THROTTLE], cost.chip_joules)
        )
        self._now_ns += cost.duration_ns
        given = self._schedulers.give_tokens(self._now_ns)
        self._step_tokens.append(len(given))
        self._token_request[self._tokens : self._tokens + len(given)] = given
        self._tokens += len(given)
        ended = self._schedulers.ended_among(given)
        self._judged_left -= int(self._judged[ended].sum())

    def _is_hopeless(self, levels: Sequence[Bound]) -> bool:
        """Whether more requests have missed a level than it allows."""
        requests = int(self._judged.sum())
        for level in levels:
            missed = missed_by(
                level,
                self._traffic,
                first_token_s=self._schedulers.first_token_s,
                last_token_s=self._schedulers.last_token_s,
                now_s=self._now_ns / NS_PER_S,
            )
            if requests and (requests - int(missed[self._judged].sum())) / requests < level.share:
                return True
        return False

    def log(self) -> StepLog:
        """The steps so far."""
        # Nanoseconds below 2**53 are exact in float64.
        columns = np.array(self._steps, dtype=np.float64).reshape(-1, 4).T
        return StepLog(
            begin_ns=columns[0].astype(np.int64),
            duration_ns=columns[1].astype(np.int64),
            throttled_ns=columns[2],
            joules=columns[3],
        )

    def result(self, ending: Ending) -> ServingRun:
        """The run so far."""
        log = self.log()
        idle_watts = self._cost_model.idle_chip_watts * self._cost_model.partition.chips
        return ServingRun(
            traffic=self._traffic,
            ending=ending,
            first_token_s=self._schedulers.first_token_s,
            last_token_s=self._schedulers.last_token_s,
            token_request=self._token_request[: self._tokens],
            step_end_s=(log.begin_ns + log.duration_ns) / NS_PER_S,
            step_tokens=np.array(self._step_tokens, dtype=np.int64),
            busy_s=int(log.duration_ns.sum()) / NS_PER_S,
            joules=sum(log.joules.tolist()) + idle_watts * self._idle_ns / NS_PER_S,
            preemptions=self._schedulers.preemptions,
            kv_blocks_used_max=self._kv_blocks_used_max,
            empty_rank_steps=self._schedulers.empty_rank_steps,
            hit_tokens=self._schedulers.hit_tokens,
        )
