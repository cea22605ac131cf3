"""How long the last steps took, their phases and parts."""

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.units import NS_PER_S
from serving.engine.engine_meters import KEPT, StepHistory
from tests.serving.engine.test_ledger import MS, cost


def batch(new_tokens: int, context_tokens: int) -> StepBatch:
    return StepBatch(
        ranks=2,
        rank=np.array([0]),
        new_tokens=np.array([new_tokens]),
        context_tokens=np.array([context_tokens]),
        logit_rows=np.array([1, 0]),
    )


PREFILL, DECODE = batch(100, 0), batch(1, 50)


def test_three_steps_by_hand() -> None:
    history = StepHistory()
    assert history.total_times.p50_s is None
    history.add(cost(40 * MS), PREFILL, begin_ns=0, end_ns=60 * MS)
    history.add(cost(2 * MS), DECODE, begin_ns=60 * MS, end_ns=62 * MS)
    history.add(cost(4 * MS), DECODE, begin_ns=62 * MS, end_ns=67 * MS)

    assert history.by_phase == {"prefill": 1, "mixed": 0, "decode": 2}
    assert history.parts_s == {"attention": pytest.approx(0.046)}
    total, device = history.total_times, history.device_times
    # A nearest rank: each figure is a step that there was.
    assert (total.steps, total.p0_s, total.p50_s, total.p100_s) == (3, 0.002, 0.005, 0.060)
    assert (device.p0_s, device.p25_s, device.p50_s, device.p99_s) == (0.002, 0.002, 0.004, 0.040)


def test_the_oldest_steps_leave() -> None:
    history = StepHistory()
    history.add(cost(NS_PER_S), DECODE, begin_ns=0, end_ns=NS_PER_S)
    for _ in range(KEPT):
        history.add(cost(MS), DECODE, begin_ns=0, end_ns=MS)

    assert history.total_times.steps == KEPT
    assert history.total_times.p100_s == 0.001
    assert history.by_phase["decode"] == KEPT + 1
