import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.traffic_classes import (
    TrafficClass,
    Transfer,
    completion_ns,
    traffic_classes,
)
from emulator.specs.systems import system_by_name

TRANSFERS = st.lists(
    st.tuples(st.sampled_from(TrafficClass), st.lists(st.integers(0, 20), min_size=2, max_size=2)),
    min_size=1,
    max_size=5,
)
EVEN = np.ones(2)


def of(traffic: TrafficClass, *link_bytes: float) -> Transfer:
    return Transfer(traffic=traffic, link_bytes=np.array(link_bytes, dtype=np.float64))


def byte_by_byte(rows: list[tuple[TrafficClass, list[int]]], classes: int) -> list[float]:
    """Each link for itself, in steps of a hundredth: the most urgent share it evenly."""
    done = [0.0] * len(rows)
    for link in range(2):
        left = [float(row[1][link]) for row in rows]
        now = 0.0
        while any(left):
            waiting = [index for index, size in enumerate(left) if size]
            urgent = min(min(int(rows[index][0]), classes - 1) for index in waiting)
            going = [i for i in waiting if min(int(rows[i][0]), classes - 1) == urgent]
            step = min(left[index] for index in going)
            now += step * len(going)
            for index in going:
                left[index] -= step
                if not left[index]:
                    done[index] = max(done[index], now)
    return done


def test_what_is_urgent_goes_first_and_the_rest_takes_what_is_left_by_hand() -> None:
    dispatch, keys = of(TrafficClass.COLLECTIVE, 10, 0), of(TrafficClass.KV_TRANSFER, 30, 5)
    weights = of(TrafficClass.EXPERT_MOVE, 100, 50)

    done = completion_ns([weights, dispatch, keys], np.array([2.0, 1.0]))

    assert done.tolist() == [2 * 140, 2 * 10, 2 * 40]


def test_without_classes_all_share_fairly_by_hand() -> None:
    dispatch, weights = of(TrafficClass.COLLECTIVE, 10), of(TrafficClass.EXPERT_MOVE, 100)

    # both go at half the rate until the shorter one is done
    assert completion_ns([dispatch, weights], np.ones(1), classes=1).tolist() == [20, 110]
    assert completion_ns([dispatch, weights], np.ones(1), classes=4).tolist() == [10, 110]


@given(rows=TRANSFERS, classes=st.integers(1, 4))
def test_the_closed_form_equals_one_share_after_the_other(
    rows: list[tuple[TrafficClass, list[int]]], classes: int
) -> None:
    transfers = [of(traffic, *sizes) for traffic, sizes in rows]

    assert completion_ns(transfers, EVEN, classes=classes) == pytest.approx(
        byte_by_byte(rows, classes)
    )


@given(rows=TRANSFERS, classes=st.integers(1, 4))
def test_no_link_idles_while_bytes_wait(
    rows: list[tuple[TrafficClass, list[int]]], classes: int
) -> None:
    transfers = [of(traffic, *sizes) for traffic, sizes in rows]

    last = completion_ns(transfers, EVEN, classes=classes).max()
    assert last == pytest.approx(np.sum([sizes for _, sizes in rows], axis=0).max())


@given(rows=TRANSFERS)
def test_the_most_urgent_are_never_later_for_having_classes(
    rows: list[tuple[TrafficClass, list[int]]],
) -> None:
    transfers = [of(traffic, *sizes) for traffic, sizes in rows]
    urgent = np.array([traffic for traffic, _ in rows]) == min(traffic for traffic, _ in rows)

    with_classes = completion_ns(transfers, EVEN)[urgent]
    assert (with_classes <= completion_ns(transfers, EVEN, classes=1)[urgent] + 1e-9).all()


def test_trainium3_tells_four_classes_apart_and_others_none() -> None:
    assert traffic_classes(system_by_name("trn3-nl72x2").chip) == 4
    assert traffic_classes(system_by_name("trn2.48xlarge").chip) == 1


def test_a_transfers_latency_is_its_own_and_nothing_takes_no_time() -> None:
    late = Transfer(traffic=TrafficClass.CHECKPOINT, link_bytes=np.array([4.0, 0.0]), latency_ns=7)

    assert completion_ns([late, of(TrafficClass.COLLECTIVE, 0, 0)], EVEN).tolist() == [11, 0]
    assert completion_ns([], EVEN).tolist() == []


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes=0"):
        completion_ns([of(TrafficClass.COLLECTIVE, 1, 1)], EVEN, classes=0)
    with pytest.raises(ConfigError, match="transfer=CHECKPOINT: expected bytes"):
        of(TrafficClass.CHECKPOINT, -1)
