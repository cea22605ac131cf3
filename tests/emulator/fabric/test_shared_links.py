import numpy as np
import pytest

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.shared_links import SharedLinks
from emulator.fabric.traffic_classes import TrafficClass
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.systems import system_by_name

CHIPS = np.arange(8)
HALF = 1_300 + 3_000  # a start and the way over the backplane


def between(sender: int, receiver: int, size: float) -> np.ndarray:
    payload = np.zeros((8, 8))
    payload[sender, receiver] = size
    return payload


def test_a_dispatch_goes_before_keys_and_values_over_the_same_lanes_by_hand() -> None:
    links = SharedLinks(TRN3_NL72X2, CHIPS)
    dispatch = links.transfer(TrafficClass.COLLECTIVE, between(0, 4, 512_000))
    keys = links.transfer(TrafficClass.KV_TRANSFER, between(0, 5, 1_024_000))
    elsewhere = links.transfer(TrafficClass.CHECKPOINT, between(2, 7, 512_000))

    done = links.completion_ns([keys, dispatch, elsewhere])

    assert done.tolist() == pytest.approx([3_000 + HALF, 1_000 + HALF, 1_000 + HALF])


def test_without_classes_the_dispatch_waits_for_its_share_by_hand() -> None:
    system = system_by_name("dgx-h200")  # 450 bytes a ns
    links = SharedLinks(system, CHIPS)
    dispatch = links.transfer(TrafficClass.COLLECTIVE, between(0, 4, 450_000))
    keys = links.transfer(TrafficClass.KV_TRANSFER, between(0, 5, 900_000))
    latency_ns = system.chip.dma_start_ns.value + system.hop_ns.value

    done = links.completion_ns([dispatch, keys])

    assert done.tolist() == pytest.approx([2_000 + latency_ns, 3_000 + latency_ns])


@pytest.mark.parametrize("name", ["trn3-nl72x2", "trn2.48xlarge", "mi300x-8"])
def test_a_transfer_alone_takes_as_long_as_an_exchange(name: str) -> None:
    system = system_by_name(name)
    payload = np.random.default_rng(1).random((8, 8)) * 1e6
    links = SharedLinks(system, CHIPS)

    alone = links.completion_ns([links.transfer(TrafficClass.COLLECTIVE, payload)])

    assert alone[0] == pytest.approx(AllToAll(system, 8).exchange(payload).duration_ns)


def test_what_no_link_can_carry_is_refused() -> None:
    cut = LinkHealth.whole(TRN3_NL72X2)
    cut.share[0] = 0.0
    links = SharedLinks(TRN3_NL72X2, CHIPS, cut)

    with pytest.raises(ValueError, match="no links lead"):
        links.transfer(TrafficClass.COLLECTIVE, between(0, 4, 1))
    assert links.transfer(TrafficClass.COLLECTIVE, between(0, 0, 1)).link_bytes.sum() == 0
