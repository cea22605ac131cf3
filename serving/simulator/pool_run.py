"""Runs a pool ahead whose router looks at what engines hold, and what they have cached."""

import numpy as np

from emulator.arrays import Bools, Int64s
from serving.simulator import compiled_schedulers as kernel
from serving.simulator.engine_pool import EnginePool
from serving.simulator.pool_run_kernel import RoutedPool
from serving.simulator.scheduler_arrays import NONE
from serving.simulator.step_run_record import (
    ARRIVAL,
    EMPTY,
    ENGINE,
    FULL,
    RUN,
    UNKNOWN,
    WAITS,
    Coming,
    PoolComing,
    StepRunRecord,
)


class PoolRun:
    """The engines of a pool that shares by load; those that are judged are in a mask [requests].

    They do what they would one by one, to the nanosecond and the bit.
    """

    def __init__(self, pool: EnginePool, judged: Bools) -> None:
        beside = pool.engines[0].schedulers.beside
        assert beside is not None, "engines apart"
        self._pool, self._engines = pool, pool.engines
        self._routed = RoutedPool(*beside, by_prefixes=pool.looks_at_prefixes)
        self._judged = judged
        self._runs = np.zeros(len(pool.engines), dtype=RUN)
        self._each_run = [self._runs[number : number + 1] for number in range(len(pool.engines))]
        self._given = np.zeros(beside[0].rows.shape[1], dtype=np.int32)
        self._own = _room(len(pool.engines), 0)
        self.is_over = False
        """Whether an engine needs a cache of its blocks: from then on they go one by one."""

    def go_ahead(self, coming: Coming, until_ns: int) -> Coming:
        """Make all steps that begin before `until_ns`, before which `coming` come.

        Returns those of them that are not routed, if it `is_over`.
        """
        left = int(self._own.routed.max())
        own = _room(len(self._engines), left + len(coming.request))
        own.routed[:] = self._own.routed
        for ours, before in zip(own[:2], self._own[:2], strict=True):
            ours[:, :left] = before[:, :left]
        self._own, place = own, np.zeros(2, dtype=np.int64)
        code = self._run(coming, place, until_ns)
        while code not in (WAITS, FULL):
            code = self._run(coming, place, until_ns)
        self.is_over = code == FULL
        if self.is_over:
            for engine, count, requests in zip(self._engines, own.routed, own.request, strict=True):
                for request in requests[:count].tolist():
                    engine.schedulers.put(request, begins=False)
        rest = slice(int(place[ARRIVAL]), None)
        return Coming(request=coming.request[rest], at_ns=coming.at_ns[rest])

    def _run(self, coming: Coming, place: Int64s, until_ns: int) -> int:
        """Go on from `place`; returns why it ends there."""
        engines, own = self._engines, self._own
        self._pool.make_room()
        assert self._pool.log_room is not None, "engines that keep their tokens"
        steps, counts = self._pool.log_room
        record = StepRunRecord(run=self._runs, steps=steps, given=self._given, counts=counts)
        for engine, run in zip(engines, self._each_run, strict=True):
            engine.open_run(run, judged_left=len(self._judged) + 1)  # they end none
        own.load_tokens[:] = NONE
        ahead = engines[0].ahead
        while True:
            code: int = kernel.run_pool(
                self._routed,
                engines[0].schedulers.bounds,
                ahead.rules,
                (coming, self._judged),
                own,
                record,
                place,
                until_ns,
            )
            if code != UNKNOWN:
                break
            ahead.learn()
        for number, (engine, run) in enumerate(zip(engines, self._each_run, strict=True)):
            taken, count = int(run["taken"][0]), int(own.routed[number])
            for each in own[:2]:
                each[number, : count - taken] = each[number, taken:count]
            own.routed[number] -= taken
            engine.close_run(run, is_empty=code == EMPTY and number == place[ENGINE])
        return code


def _room(engines: int, requests: int) -> PoolComing:
    shape = (engines, requests)
    return PoolComing(
        request=np.zeros(shape, dtype=np.int64),
        at_ns=np.zeros(shape, dtype=np.int64),
        routed=np.zeros(engines, dtype=np.int64),
        load_tokens=np.full(engines, NONE),
    )
