import numpy as np
import pytest

from emulator.specs.chips import chip_by_name
from emulator.specs.models import model_by_name
from emulator.timing.activation_traffic import (
    expert_traffic_bytes,
    module_traffic_bytes,
    spilled_share,
)


def test_rows_that_fit_beside_the_engines_move_nothing() -> None:
    rows = np.array([0.0, 10.0, 100.0])

    assert module_traffic_bytes(rows, hidden=8, beside_bytes=1_600).tolist() == [0, 0, 0]


def test_the_part_that_does_not_fit_moves_six_times_by_hand() -> None:
    # 400 rows x 8 x 2 bytes = 6,400, of which 1,600 fit: three quarters spill
    rows = np.array([400.0])

    assert spilled_share(rows, row_bytes=16, beside_bytes=1_600).tolist() == [0.75]
    assert module_traffic_bytes(rows, hidden=8, beside_bytes=1_600).tolist() == [6 * 4_800]


def test_experts_rows_are_as_wide_as_what_goes_in_and_what_is_activated() -> None:
    moved = expert_traffic_bytes(np.array([100.0]), hidden=6, width=2, beside_bytes=0)

    assert moved.tolist() == [3 * 100 * 16]


@pytest.mark.parametrize("name", ["trainium3", "trainium2"])
def test_a_chunk_of_serving_stays_in_a_trainiums_memory(name: str) -> None:
    tokens = np.array([8_192.0])
    hidden = model_by_name("deepseek-v3").hidden
    beside_bytes = chip_by_name(name).sbuf_bytes.value

    assert module_traffic_bytes(tokens, hidden=hidden, beside_bytes=beside_bytes).tolist() == [0]
