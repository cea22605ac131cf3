"""Compiles what a simulation needs, so that the time of the run itself is its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Final

import numpy as np
from numba.core import event

from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCost
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.engine.scheduler_state import RankQueues
from serving.simulator import compiled_schedulers as kernel
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.needed_cache import caches_when_full, shares
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulation import simulate

NOTICE_S: Final = 1.0


def compile_kernels(
    deployment: SimulatedDeployment,
    traffic: Traffic,
    *,
    watched: bool = False,
    calls: bool = False,
    timeouts: bool = False,
    on_wait: Callable[[], None],
) -> None:
    """Compile all functions that `simulate` calls for `traffic`, or read them from the disk.

    `watched`: each step is; `calls`: some come to the machines; `timeouts`: clients give up. Calls
    `on_wait` from a thread, once, when it really compiles and has taken more than NOTICE_S. Raises
    as `simulate` does.
    """
    one_by_one = watched or calls or timeouts or deployment.engines > 1
    with _notice(on_wait):
        parts = deployment.parts_of(traffic)
        fills = any(caches_when_full(part, pool.limits) for pool, part in parts)
        for cached in {fills, *(shares(part, pool.limits) for pool, part in parts)}:
            first = _first(traffic, cached=cached)
            simulate(deployment, first)  # ahead, where it can
            if one_by_one:
                simulate(deployment, first, on_step=_ignored)
            _compile_rare(deployment, first, calls=calls, timeouts=timeouts, fills=fills)


@contextmanager
def _notice(on_wait: Callable[[], None]) -> Iterator[None]:
    """Look every NOTICE_S whether the block has begun to compile; calls `on_wait` once."""
    over = Event()
    with event.install_recorder("numba:compile") as compiled:

        def watch() -> None:
            while not over.wait(NOTICE_S):
                if compiled.buffer:
                    on_wait()
                    return

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _ignored(
    cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[RankQueues]
) -> None:
    """A watcher: engines with one go step by step."""


def _first(traffic: Traffic, *, cached: bool) -> Traffic:
    """The first request, with a prefix cache where all of the traffic has one."""
    first = replace(traffic.first(1), loops=None)
    if first.blocks is not None or not cached:
        return first
    nothing = np.zeros(0, dtype=np.int64)
    begin = np.zeros(len(first) + 1, dtype=np.int64)
    return replace(first, blocks=PromptBlocks(names=nothing, end_tokens=nothing, begin=begin))


def _compile_rare(
    deployment: SimulatedDeployment, first: Traffic, *, calls: bool, timeouts: bool, fills: bool
) -> None:
    """What a single request does not come to."""
    for pool in deployment.pools:
        (one,) = LockstepSchedulers.replicas(first, pool.limits, pool.cost_model.partition.ranks, 1)
        if calls:  # requests of lost ranks are sent to others
            kernel.send(one.arrays, one.bounds, one.cache, np.zeros(0, dtype=np.int64))
        if timeouts:
            kernel.abort_due(one.arrays, one.cache, 0)
        if fills:  # ranks that may run out of blocks
            kernel.may_preempt(one.arrays, one.bounds)
            one.make_cache()
