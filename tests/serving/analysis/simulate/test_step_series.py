"""Means over pieces of time of what steps say."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.simulate.step_series import StepSeries
from serving.engine.scheduler_state import RankQueues


def series(*steps: tuple[int, int, int, float]) -> StepSeries:
    """Of (begin ns, duration ns, running requests, joules)."""
    made = StepSeries(idle_watts=0.5)
    for begin_ns, duration_ns, running, joules in steps:
        chip_watts = np.zeros(2)  # how many they are
        cost: Any = SimpleNamespace(
            duration_ns=duration_ns, chip_joules=joules, chip_watts=chip_watts
        )
        half = RankQueues(running=running, waiting=2 * running, kv_blocks_used=3 * running)
        batch: Any = None
        made(cost, batch, begin_ns=begin_ns, queues=(half, half))
    return made


def test_by_hand() -> None:
    # 4 requests on two ranks from 10 to 30 ns, idle until 40, 2 until 60.
    made = series((10, 20, 2, 40e-9), (40, 20, 1, 60e-9))
    edges_ns = np.array([0, 20, 40, 60])

    assert made.means("running", edges_ns).tolist() == [2.0, 2.0, 2.0]
    assert made.means("waiting", edges_ns).tolist() == [4.0, 4.0, 4.0]
    assert made.means("kv_blocks_used", edges_ns).tolist() == [6.0, 6.0, 6.0]
    # 2 W in the first step, 3 W in the second, 1 W of two idle chips.
    watts = made.means("watts_above_idle", edges_ns)
    assert watts.tolist() == pytest.approx([0.5, 0.5, 2.0])


@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(7, 10**10), st.integers(0, 500)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 7),  # pieces of a ns at least
)
def test_steps_of_engines_that_overlap_add_up(
    steps: list[tuple[int, int, int]], pieces: int
) -> None:
    made = series(*((begin, length, running, 1.0) for begin, length, running in steps))
    end_ns = max(begin + length for begin, length, _ in steps)
    edges_ns = np.linspace(0, end_ns, pieces + 1).astype(np.int64)

    slowly = [
        sum(
            2 * running * max(0, min(to, begin + length) - max(since, begin))
            for begin, length, running in steps
        )
        / (to - since)
        for since, to in zip(edges_ns[:-1].tolist(), edges_ns[1:].tolist(), strict=True)
    ]
    np.testing.assert_allclose(made.means("running", edges_ns), slowly, rtol=1e-6, atol=1e-3)
