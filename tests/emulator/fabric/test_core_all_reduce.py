import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.fabric.core_all_reduce import CoreAllReduce
from emulator.specs.catalog.trainium3 import TRAINIUM3

PAYLOAD = np.array([1_056_000.0])


@pytest.mark.parametrize(
    ("lnc", "expected_ns"),
    [
        (1, 2 * (7 / 8 * 1_056_000 / 528 + 1_300)),  # 8 cores of 528 bytes/ns: 6,100 ns
        (2, 2 * (3 / 4 * 1_056_000 / 1_056 + 1_300)),  # 4 cores of 1,056: 4,100 ns
        (8, 0),  # one core
    ],
)
def test_the_three_settings_add_up_in_different_times_by_hand(lnc: int, expected_ns: float) -> None:
    assert CoreAllReduce(TRAINIUM3, lnc).duration_ns(PAYLOAD).tolist() == [expected_ns]


def test_only_the_starts_do_not_keep_the_dma_engines_busy() -> None:
    two = CoreAllReduce(TRAINIUM3, 2)

    assert (two.duration_ns(PAYLOAD) - two.moving_ns(PAYLOAD)).tolist() == [2_600]
    assert CoreAllReduce(TRAINIUM3, 8).moving_ns(PAYLOAD).tolist() == [0]


def test_nothing_to_add_up_takes_no_time() -> None:
    assert CoreAllReduce(TRAINIUM3, 2).duration_ns(np.zeros(3)).tolist() == [0, 0, 0]


def test_cores_that_the_chip_cannot_make_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^lnc=4"):
        CoreAllReduce(TRAINIUM3, 4)
