"""A job's state between two sizes: what moves, by hand and in all sizes; where it saves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import HandoverCost
from serving.analysis.tenants.checkpoint_store import CheckpointStore
from serving.analysis.tenants.resharding import moved_bytes, resharding
from serving.simulator.job_cost import JobCost

SYSTEM = system_by_name("trn3-nl72x2")


def job(chips: int, *, ep: int = 1) -> JobCost:
    return JobCost(
        chips=chips,
        step_tokens=1_000,
        step_ns=4_000_000_000,
        watts=100.0,
        save=HandoverCost(bytes_storage=10**12),
        read=HandoverCost(),
        recipe=TrainingRecipe(ep=ep),
    )


def test_from_two_chips_to_three_by_hand() -> None:
    # Halves of 6 become thirds: [0, 2), [2, 4), [4, 6) of [0, 3), [3, 6).
    assert moved_bytes(6.0, 2, 3).tolist() == [[2, 1, 0], [0, 1, 2], [0, 0, 0]]
    assert moved_bytes(6.0, 3, 2).tolist() == [[2, 0, 0], [1, 1, 0], [0, 2, 0]]


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_byte_goes_from_its_chip_to_its_next(before: int, after: int) -> None:
    sent = moved_bytes(1e9, before, after)

    assert sent.sum(axis=1)[:before] == pytest.approx(1e9 / before)
    assert sent.sum(axis=0)[:after] == pytest.approx(1e9 / after)
    assert sent.sum() == pytest.approx(1e9)


def test_only_sizes_of_one_recipe_go_over_without_a_checkpoint() -> None:
    found = resharding(SYSTEM, [None, job(4), job(8), job(12, ep=2)], group_chips=4)

    seconds = found.seconds
    assert np.diag(seconds).tolist() == [np.inf, 0, 0, 0]
    assert 0 < seconds[1, 2] < 10
    assert 0 < seconds[2, 1] < 10
    assert np.isinf(seconds[[1, 2, 3, 3], [3, 3, 1, 2]]).all()
    assert np.isinf(seconds[0]).all()
    assert found.finish_s.tolist() == [0, 2, 2, 2]
    # Idle power of both groups, and the energy of half of the bytes or more.
    assert found.joules[1, 2] > 8 * SYSTEM.chip.idle_watts.value * seconds[1, 2]


def test_neighbours_are_saved_to_over_the_hosts_links() -> None:
    drives, neighbours = (store.rates for store in CheckpointStore)
    link = RecoveryRates().host_link_bytes_per_s.value

    assert drives == RecoveryRates()
    assert neighbours.write_bytes_per_s == neighbours.read_bytes_per_s == link
    assert drives.write_bytes_per_s < drives.read_bytes_per_s < link
