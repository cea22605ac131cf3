import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.all_reduce import RankAllReduce
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2

SYSTEM = TRN3_NL72X2  # 4 chips a tray, 72 a rack; 512, 512 and 128 bytes/ns; 1,000 ns a hop


def ranks(tp: int, chips: list[int]) -> RankAllReduce:
    return RankAllReduce(SYSTEM, tp=tp, physical=np.array(chips, dtype=np.int64))


def test_four_chips_of_a_tray_by_hand() -> None:
    collective = ranks(4, [0, 1, 2, 3])
    payload = np.array([1_024_000.0])

    # three quarters of 1,024,000 bytes at 512 a ns; a start of 1,300 ns and one hop
    assert collective.moving_ns(payload).tolist() == [1_500]
    assert collective.all_gather_ns(payload).tolist() == [1_500 + 2_300]
    assert collective.all_reduce_ns(payload).tolist() == [2 * 3_800]


def test_each_rank_is_as_slow_as_the_farthest_tier_between_its_chips() -> None:
    # two chips of one tray, of two trays, of two racks
    collective = ranks(2, [0, 1, 3, 4, 71, 72])
    payload = np.full(3, 1_024.0)

    assert collective.all_gather_ns(payload).tolist() == [
        1 + 1_300 + 1_000,
        1 + 1_300 + 3_000,
        4 + 1_300 + 4_000,
    ]


def test_a_rank_of_one_chip_and_a_rank_without_tokens_wait_for_nothing() -> None:
    assert ranks(1, [0, 100]).all_reduce_ns(np.array([1e9, 1e9])).tolist() == [0, 0]
    # two chips swap all they have at once: 1,024 bytes at 512 a ns, one start and one hop
    assert ranks(2, [0, 1, 2, 3]).all_reduce_ns(np.array([0.0, 1_024.0])).tolist() == [0, 2_302]


def test_chips_that_are_no_whole_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 chips are not whole ranks of 2"):
        ranks(2, [0, 1, 2])


def test_eight_chips_of_two_trays_use_the_lanes_of_both_tiers_at_once() -> None:
    collective = ranks(8, list(range(8)))
    payload = np.array([512_000.0])

    # an eighth of 512,000 bytes to three chips over the board, and to four over the backplane
    assert collective.all_gather_ns(payload).tolist() == [4 * 125 + 1_300 + 3 * 1_000]
    assert collective.moving_ns(payload).tolist() == [4 * 125]


@pytest.mark.long
@given(
    payload=st.lists(st.integers(0, 10**9), min_size=3, max_size=3),
    lost=st.sets(st.sampled_from([0, 5, 8, 9]), max_size=3),
    share=st.sampled_from([0.0, 0.25, 0.5]),
)
def test_cut_lanes_never_make_a_rank_faster(
    payload: list[int], lost: set[int], share: float
) -> None:
    physical = np.arange(12, dtype=np.int64)
    links = LinkHealth.whole(SYSTEM)
    links.share[sorted(lost), Tier.BACKPLANE] = share
    fabric = AllToAll(SYSTEM, 12, physical=physical, links=links)
    whole = RankAllReduce(SYSTEM, tp=4, physical=physical)
    left = RankAllReduce(SYSTEM, tp=4, physical=physical, all_to_all=fabric)
    sizes = np.array(payload, dtype=np.float64)

    assert (left.all_reduce_ns(sizes) >= whole.all_reduce_ns(sizes) - 1e-6).all()
    assert (left.all_gather_ns(sizes) >= whole.all_gather_ns(sizes) - 1e-6).all()


def test_board_lanes_that_are_cut_make_their_rank_alone_slower() -> None:
    links = LinkHealth.whole(SYSTEM)
    links.share[1, Tier.TRAY] = 0.5
    physical = np.arange(8, dtype=np.int64)
    fabric = AllToAll(SYSTEM, 8, physical=physical, links=links)

    left = RankAllReduce(SYSTEM, tp=4, physical=physical, all_to_all=fabric)

    # both ranks gather 1,024,000 bytes; chip 1 has 256 bytes a ns
    sizes = np.array([1_024_000.0, 1_024_000.0])
    assert left.all_gather_ns(sizes).tolist() == [3_000 + 2_300, 1_500 + 2_300]
