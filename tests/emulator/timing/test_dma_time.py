from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.timing.dma_time import exposed_start_ns, lost_share, transfer_efficiency


def test_transfers_of_four_kib_saturate_and_256_bytes_reach_half_by_hand() -> None:
    assert transfer_efficiency(TRAINIUM3, 4_096) == 1
    assert transfer_efficiency(TRAINIUM3, 1_000_000) == 1
    # 256 / (256 + 256), where 4,096 / (4,096 + 256) counts as all
    assert transfer_efficiency(TRAINIUM3, 256) == pytest.approx(0.5 * 4_352 / 4_096)
    assert lost_share(TRAINIUM3, 256) == pytest.approx(1 / (0.5 * 4_352 / 4_096) - 1)
    assert lost_share(TRAINIUM3, 4_096) == 0


def test_a_chip_that_saturates_with_smaller_transfers_loses_less() -> None:
    line = replace(
        TRAINIUM3, dma_saturating_bytes=replace(TRAINIUM3.dma_saturating_bytes, value=128)
    )

    assert lost_share(line, 256) == 0 < lost_share(TRAINIUM3, 256)


@given(st.floats(1, 1e7), st.floats(1, 1e7))
def test_a_larger_transfer_is_never_less_efficient(one: float, other: float) -> None:
    small, large = sorted((one, other))

    assert 0 < transfer_efficiency(TRAINIUM3, small) <= transfer_efficiency(TRAINIUM3, large) <= 1


def test_a_transfer_of_nothing_loses_nothing_and_one_start_of_a_layer_is_exposed() -> None:
    assert lost_share(TRAINIUM3, 0) == 0
    assert exposed_start_ns(TRAINIUM3) == 1_300
