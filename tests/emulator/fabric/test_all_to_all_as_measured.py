"""The exchange against a public measurement: DeepEP's low-latency kernels on H800 boxes.

Per rank 128 tokens of 7,168 values, 8 experts each, FP8 to dispatch and BF16 to combine; 8 GPUs a
box, one 400 Gb/s card per GPU. Times in microseconds from the README of github.com/deepseek-ai/
DeepEP. The model knows the links; one constant is left, what an exchange takes beside them, and it
is read off the first of the eight values alone.
"""

import numpy as np
import pytest

from emulator.fabric.all_to_all import AllToAll
from emulator.specs.systems import system_by_name

TOKENS, CHOICES, HIDDEN = 128, 8, 7_168
MEASURED_US = {
    8: {"dispatch": 77, "combine": 114},
    16: {"dispatch": 118, "combine": 195},
    32: {"dispatch": 155, "combine": 273},
    64: {"dispatch": 173, "combine": 314},
}
BYTES_PER_VALUE = {"dispatch": 1, "combine": 2}


def links_us(ranks: int, what: str) -> float:
    """Links' time of an even exchange: a token goes once to each of its experts."""
    system = system_by_name("dgx-h800").cluster(ranks // 8)
    each = TOKENS * CHOICES * HIDDEN * BYTES_PER_VALUE[what] / ranks
    payload = np.full((ranks, ranks), each)
    np.fill_diagonal(payload, 0.0)
    return float(AllToAll(system, ranks).exchange(payload).link_busy_ns.max()) / 1e3


BESIDE_LINKS_US = MEASURED_US[8]["dispatch"] - links_us(8, "dispatch")


def test_in_a_box_seven_of_eight_parts_leave_over_nvlink_by_hand() -> None:
    # 7/8 x 128 x 8 x 7,168 bytes at 200 bytes a ns
    assert links_us(8, "dispatch") == pytest.approx(32.1, abs=0.05)
    assert pytest.approx(44.9, abs=0.05) == BESIDE_LINKS_US


@pytest.mark.parametrize("ranks", MEASURED_US)
@pytest.mark.parametrize("what", BYTES_PER_VALUE)
def test_an_exchange_is_within_five_per_cent_of_what_was_measured(ranks: int, what: str) -> None:
    modelled_us = links_us(ranks, what) + BESIDE_LINKS_US

    assert modelled_us == pytest.approx(MEASURED_US[ranks][what], rel=0.05)


def test_an_exchange_that_did_not_serialise_a_ranks_bytes_would_be_far_too_fast() -> None:
    one_pair_us = TOKENS * CHOICES * HIDDEN / 64 / 50e9 * 1e6

    assert links_us(64, "dispatch") > 50 * one_pair_us
