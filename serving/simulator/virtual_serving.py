"""Serves traffic in virtual time: compiled schedulers decide each step, the cost model times it.

No chips run, tokens are synthetic, and the host takes no time, so a run depends on the emulated
machine alone and repeats exactly. Every step is scheduled. The clock counts whole ns; requests that
arrive during a step wait for its end.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import NONE
from serving.simulator.simulated_deployment import SimulatedDeployment
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


class StopSimulation(Exception):
    """Raised by a watcher of progress: the run ends with what there is."""


Progress = Callable[[int, float], None]
"""Called now and then with the requests that have all their tokens, and the emulated seconds."""


def serve_in_virtual_time(
    deployment: SimulatedDeployment,
    traffic: Traffic,
    *,
    levels: Sequence[Bound] = (),
    among: Bools | None = None,
    until_s: float = float("inf"),
    on_step: StepWatcher | None = None,
    progress: Progress | None = None,
) -> tuple[ServingRun, StepLog]:
    """Serve `traffic` until all requests, or those in the mask `among` [requests], have their
    tokens.

    A run ends earlier when one of `levels` is certain to be missed by those requests, when no step
    begins before `until_s`, or when `progress` raises StopSimulation; the result says which.
    `on_step` gets every step.

    Raises ConfigError for a request longer than the context or a rank's KV, and for an unknown
    prefill policy.
    """
    _refuse_what_never_fits(deployment, traffic)
    judged = np.ones(len(traffic), dtype=np.bool_) if among is None else among
    serving = _VirtualServing(deployment, traffic, judged, on_step, progress)
    try:
        ending = serving.serve(levels, until_ns=until_s * NS_PER_S)
    except StopSimulation:
        ending = Ending.STOPPED
    return serving.result(serving.ended(ending)), serving.log()


def _refuse_what_never_fits(deployment: SimulatedDeployment, traffic: Traffic) -> None:
    """Raise ConfigError for requests that would wait for ever; an engine refuses them."""
    if not len(traffic):
        return
    limits, model = deployment.limits, deployment.cost_model.model
    max_model_len = limits.max_model_len or model.max_context_tokens
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
    """One run: the engines' clocks and steps; about the `judged`, [requests].

    An engine takes what came during a step when it ends, as a live one does.
    """

    def __init__(
        self,
        deployment: SimulatedDeployment,
        traffic: Traffic,
        judged: Bools,
        on_step: StepWatcher | None,
        progress: Progress | None,
    ) -> None:
        self._traffic = traffic
        self._cost_model = deployment.cost_model
        self._replicas = deployment.replicas
        self._engines = engines = LockstepSchedulers.replicas(
            traffic,
            deployment.limits,
            deployment.cost_model.partition.ranks,
            deployment.replicas.count,
        )
        self._progress = progress
        self._end_ns: list[int | None] = [None] * len(engines)  # of the step under way
        self._on_step = on_step
        self._requests = engines[0].arrays.requests
        self._arrival_ns = self._requests["arrival_ns"]
        self._coming = 0  # the next request to arrive
        self._now_ns = 0
        self._judged = judged
        self._judged_left = int(judged.sum())
        self._token_request = np.empty(int(traffic.output_tokens.sum()), dtype=np.int32)
        self._tokens = 0
        self._done = 0  # requests with all their tokens
        self._next_check = HOPE_STEPS
        # Of each step, by its begin: as the log.
        self._begin_ns, self._duration_ns = array("q"), array("q")
        self._throttled_ns, self._joules = array("d"), array("d")
        # And by its end.
        self._step_end_ns, self._step_tokens = array("q"), array("q")
        self._kv_blocks_used_max = 0

    def serve(self, levels: Sequence[Bound], *, until_ns: float) -> Ending:
        """Step until the end; levels concern the judged requests."""
        while self._judged_left:
            self._now_ns = self._next_ns(arrivals=self._now_ns < until_ns)
            self._finish_due()
            if not self._judged_left:
                break
            if self._steps_ended >= self._next_check:
                self._next_check += HOPE_STEPS
                if self._progress is not None:
                    self._progress(self._done, self._now_ns / NS_PER_S)
                if levels and self._is_hopeless(levels):
                    return Ending.HOPELESS
            if self._now_ns < until_ns:
                self._take_arrivals()
                self._begin_steps()
            elif not self._is_busy:
                return Ending.TIME_UP
        return Ending.JUDGED

    def ended(self, ending: Ending) -> Ending:
        """End the steps that are under way; returns SERVED where all requests have their tokens."""
        while self._is_busy:
            self._now_ns = self._next_ns(arrivals=False)
            self._finish_due()
        is_over = bool((self._requests["last_token_ns"] != NONE).all())
        return Ending.SERVED if is_over else ending

    @property
    def _is_busy(self) -> bool:
        return any(end_ns is not None for end_ns in self._end_ns)

    def _next_ns(self, *, arrivals: bool) -> int:
        """When the next step ends, or the next request comes to an engine that could take it."""
        times_ns = [end_ns for end_ns in self._end_ns if end_ns is not None]
        waits_for_all = len(self._engines) == 1 and times_ns
        if arrivals and self._coming < len(self._arrival_ns) and not waits_for_all:
            times_ns.append(max(self._now_ns, int(self._arrival_ns[self._coming])))
        return min(times_ns, default=self._now_ns)

    def _begin_steps(self) -> None:
        for number, engine in enumerate(self._engines):
            if self._end_ns[number] is None and engine.requests:
                self._begin(number)

    def _finish_due(self) -> None:
        for number, end_ns in enumerate(self._end_ns):
            if end_ns == self._now_ns:
                self._finish(number)

    def _take_arrivals(self) -> None:
        """Send on what has arrived by now."""
        if len(self._engines) == 1:
            self._coming = self._engines[0].admit(self._coming, self._now_ns)
            return
        while (
            self._coming < len(self._arrival_ns) and self._arrival_ns[self._coming] <= self._now_ns
        ):
            number = self._replicas.choose(self._coming, self._engines)
            self._engines[number].put(self._coming, begins=self._end_ns[number] is None)
            self._coming += 1

    def _begin(self, number: int) -> None:
        """Decide an engine's next step, and when it ends."""
        engine = self._engines[number]
        for _ in range(EMPTY_STEPS_MAX):
            batch = engine.schedule()
            if len(batch.rank):
                break
        assert len(batch.rank), "requests wait and no rank takes any"
        self._kv_blocks_used_max = max(self._kv_blocks_used_max, engine.kv_blocks_used_max)
        cost = self._cost_model.cost(batch)
        if self._on_step is not None:
            self._on_step(cost, batch, begin_ns=self._now_ns, queues=engine.queues)
        self._begin_ns.append(self._now_ns)
        self._duration_ns.append(cost.duration_ns)
        self._throttled_ns.append(cost.parts_ns[THROTTLE])
        self._joules.append(cost.chip_joules)
        self._end_ns[number] = self._now_ns + cost.duration_ns

    def _finish(self, number: int) -> None:
        """Give out the tokens of an engine's step, which ends now."""
        engine = self._engines[number]
        given = engine.give_tokens(self._now_ns)
        self._end_ns[number] = None
        self._step_end_ns.append(self._now_ns)
        self._step_tokens.append(len(given))
        self._done += engine.ended
        self._token_request[self._tokens : self._tokens + len(given)] = given
        self._tokens += len(given)
        self._judged_left -= int(self._judged[engine.ended_among(given)].sum())
        engine.take_inbox()

    def _is_hopeless(self, levels: Sequence[Bound]) -> bool:
        """Whether more requests have missed a level than it allows."""
        requests = int(self._judged.sum())
        for level in levels:
            missed = missed_by(
                level,
                self._traffic,
                first_token_s=_seconds(self._requests["first_token_ns"]),
                last_token_s=_seconds(self._requests["last_token_ns"]),
                now_s=self._now_ns / NS_PER_S,
            )
            if requests and (requests - int(missed[self._judged].sum())) / requests < level.share:
                return True
        return False

    def log(self) -> StepLog:
        """The steps so far."""
        return StepLog(
            begin_ns=np.array(self._begin_ns, dtype=np.int64),
            duration_ns=np.array(self._duration_ns, dtype=np.int64),
            throttled_ns=np.array(self._throttled_ns),
            joules=np.array(self._joules),
        )

    @property
    def _steps_ended(self) -> int:
        return len(self._step_end_ns)

    def result(self, ending: Ending) -> ServingRun:
        """The run so far."""
        log = self.log()
        chips = self._cost_model.partition.chips
        end_ns = np.array(self._step_end_ns, dtype=np.int64)
        busy_ns = int(log.duration_ns.sum())
        idle_ns = len(self._engines) * int(end_ns.max(initial=0)) - busy_ns
        idle_watts = self._cost_model.idle_chip_watts * chips
        return ServingRun(
            traffic=self._traffic,
            ending=ending,
            first_token_s=_seconds(self._requests["first_token_ns"]),
            last_token_s=_seconds(self._requests["last_token_ns"]),
            token_request=self._token_request[: self._tokens],
            step_end_s=end_ns / NS_PER_S,
            step_tokens=np.array(self._step_tokens, dtype=np.int64),
            busy_s=busy_ns / NS_PER_S,
            joules=sum(log.joules.tolist()) + idle_watts * idle_ns / NS_PER_S,
            preemptions=int(self._requests["preemptions"].sum()),
            kv_blocks_used_max=self._kv_blocks_used_max,
            empty_rank_steps=sum(engine.empty_rank_steps for engine in self._engines),
            hit_tokens=int(self._requests["hits"].sum()),
        )


def _seconds(times_ns: Int64s) -> Float64s:
    """Of each request, [requests]; NaN where there is none."""
    return np.where(times_ns == NONE, np.nan, times_ns / NS_PER_S)
