from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.all_to_all import AllToAll
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.routing import ExpectedRouting
from emulator.ultraserver.token_exchange import TokenExchange
from tests.emulator.specs.tiny_model import TINY

ROW_BYTES = 1_000_000  # so large that bytes decide, not starts
MODEL: ModelSpec = replace(TINY, experts=32, experts_per_token=4)
TWO_BOXES: SystemSpec = SYSTEMS["dgx-h100"].cluster(2)  # of 8 chips each


def exchange(
    system: SystemSpec,
    partition: Partition,
    *,
    forward: bool = True,
    row_bytes: float = ROW_BYTES,
    stores_slower: float = 1.0,
) -> TokenExchange:
    distribution = ExpertDistribution.uniform(MODEL)
    placement = ExpertPlacement.even(layers=2, experts=32, chips=partition.chips, ep=partition.ep)
    made = TokenExchange(
        system,
        partition,
        AllToAll(system, partition.chips),
        needed=ExpectedRouting(distribution, placement).chance_needed,
        row_bytes=row_bytes,
        stores_slower=stores_slower,
    )
    if forward:
        made.may_forward(distribution, placement)
    return made


def missed(experts: int) -> float:
    """That a token picks four of 32 experts outside so many."""
    return float(np.prod([(32 - experts - place) / (32 - place) for place in range(4)]))


def test_rows_go_once_to_every_chip_that_needs_them_by_hand() -> None:
    made = exchange(SYSTEMS["dgx-h100"], Partition(chips=8, ep=8, lnc=132))
    tokens = np.zeros(8)
    tokens[3] = 10.0

    times, leaving = made.of_tokens(tokens)

    # each chip has four of 32 experts
    assert leaving[0].tolist() == pytest.approx(
        [0, 0, 0, 10 * 7 * (1 - missed(4)) * ROW_BYTES, 0, 0, 0, 0]
    )
    rate = SYSTEMS["dgx-h100"].chip.link_tray_bytes_per_s.value / 1e9
    assert times.link_busy_ns[0, 3] == pytest.approx(leaving[0, 3] / rate)


def test_a_far_domain_gets_a_row_once_and_passes_it_on_by_hand() -> None:
    partition = Partition(chips=16, ep=16, lnc=132)
    direct, forwarded = (exchange(TWO_BOXES, partition, forward=each) for each in (False, True))
    tokens = np.zeros(16)
    tokens[0] = 10.0

    far, leaving = forwarded.of_tokens(tokens)
    plain, plainly = direct.of_tokens(tokens)

    # a chip has two of 32 experts, the far box 16. Directly, eight far chips get the row
    assert plainly[0, 0] == pytest.approx(10 * 15 * (1 - missed(2)) * ROW_BYTES)
    near, box = 7 * (1 - missed(2)), 1 - missed(16)
    assert leaving[0, 0] == pytest.approx(10 * (near + box) * ROW_BYTES)
    assert leaving[0, 8] == pytest.approx(10 * near * ROW_BYTES), "what its counterpart passes on"
    assert leaving[0, [1, 9, 15]].tolist() == [0, 0, 0]
    nic = TWO_BOXES.chip.scale_out_bytes_per_s
    assert nic is not None
    assert far.link_busy_ns[0, 0] == pytest.approx(10 * box * ROW_BYTES / nic.value * 1e9)
    assert far.duration_ns[0] < plain.duration_ns[0]


def test_what_is_forwarded_inside_a_box_takes_longer_where_stores_are_slower_by_hand() -> None:
    partition = Partition(chips=16, ep=16, lnc=132)
    even, slower = (exchange(TWO_BOXES, partition, stores_slower=each) for each in (1.0, 4.0))
    tokens = np.full(16, 10.0)

    (times, leaving), (slow, slowly) = even.of_tokens(tokens), slower.of_tokens(tokens)

    # a chip's own rows and its counterpart's, over links that are nine times the network card's
    inside_bytes = 2 * 10 * 7 * (1 - missed(2)) * ROW_BYTES
    tray = TWO_BOXES.chip.link_tray_bytes_per_s.value / 1e9
    assert slow.link_busy_ns[0].tolist() == pytest.approx([4 * inside_bytes / tray] * 16)
    assert times.link_busy_ns[0, 0] < slow.link_busy_ns[0, 0]
    assert slowly.tolist() == leaving.tolist(), "bytes are the same"


def slow_forwarded(needed: np.ndarray, domain_needed: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Row by row: from each sender to each domain of its group, and on to each chip there."""
    chips, width = len(tokens), 8
    sent = np.zeros((chips, chips))
    for sender in range(chips):
        for domain in range(chips // width):
            counterpart = domain * width + sender % width
            if counterpart != sender:
                sent[sender, counterpart] += tokens[sender] * domain_needed[counterpart]
            for receiver in range(domain * width, (domain + 1) * width):
                sent[counterpart, receiver] += tokens[sender] * needed[receiver]
    np.fill_diagonal(sent, 0.0)
    return sent


def test_forwarded_bytes_equal_following_every_row() -> None:
    system = SYSTEMS["dgx-h100"].cluster(4)
    made = exchange(system, Partition(chips=32, ep=32, lnc=132))
    tokens = np.arange(32, dtype=np.float64) % 5 * 10

    times, leaving = made.of_tokens(tokens)

    needed, box = np.full(32, 1 - missed(1)), np.full(32, 1 - missed(8))
    sent = slow_forwarded(needed, box, tokens) * ROW_BYTES
    assert leaving[0] == pytest.approx(sent.sum(axis=1))
    followed = AllToAll(system, 32).exchange(sent)
    assert times.link_busy_ns[0] == pytest.approx(followed.link_busy_ns)
    assert times.duration_ns[0] >= followed.duration_ns, "passing on starts a second transfer"


def test_small_rows_go_directly() -> None:
    partition = Partition(chips=16, ep=16, lnc=132)
    tokens = np.ones(16)

    both = [
        exchange(TWO_BOXES, partition, forward=each, row_bytes=100).of_tokens(tokens)
        for each in (False, True)
    ]

    assert both[0][0].duration_ns.tolist() == both[1][0].duration_ns.tolist()
    assert both[0][1].tolist() == both[1][1].tolist()


@pytest.mark.parametrize("ep", [4, 8])
def test_groups_inside_a_domain_forward_nothing(ep: int) -> None:
    partition = Partition(chips=16, ep=ep, lnc=132)
    tokens = np.ones(16)

    both = [
        exchange(TWO_BOXES, partition, forward=each).of_tokens(tokens) for each in (False, True)
    ]

    assert both[0][0].duration_ns.tolist() == both[1][0].duration_ns.tolist()
