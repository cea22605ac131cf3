import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.kv_transfer import kv_transfer_ns, layered_ready_ns
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name


def moved_ns(
    sent: list[int], taken: list[int], size: float, *, system: SystemSpec = TRN3_NL72X2
) -> float:
    return kv_transfer_ns(
        system, bytes_per_request=size, from_chips=np.array(sent), to_chips=np.array(taken)
    )


def test_one_chip_to_one_of_another_tray_by_hand() -> None:
    assert moved_ns([0], [4], 512_000) == 1_000 + 1_300 + 3_000
    assert moved_ns([0], [72], 512_000) == 4_000 + 1_300 + 4_000
    assert moved_ns([0], [4], 0) == 0


def test_four_chips_to_two_hold_what_belongs_together_by_hand() -> None:
    # each sender has a quarter of 1,024,000 bytes, each receiver takes two of them
    assert moved_ns([0, 1, 2, 3], [4, 5], 1_024_000) == 1_000 + 1_300 + 3_000
    # three to two: the middle one's third is halved
    assert moved_ns([0, 1, 2], [4, 5], 1_536_000) == 1_500 + 1_300 + 3_000


def test_another_machine_is_reached_over_the_network_cards_by_hand() -> None:
    boxes = system_by_name("dgx-h800")
    start_ns = boxes.scale_out_start_ns.value

    # an eighth of 400 MB per card, 50 bytes a ns
    two_boxes = boxes.cluster(2)
    over_cards = moved_ns(list(range(8)), list(range(8, 16)), 400e6, system=two_boxes)
    assert over_cards == pytest.approx(1e6 + start_ns)
    in_the_box = moved_ns([0, 1], [2, 3], 400e6, system=boxes)
    assert in_the_box < 2e6


@given(sent=st.integers(1, 4), taken=st.integers(1, 4), size=st.floats(1, 1e9))
def test_a_larger_request_never_takes_less_and_no_chip_moves_more_than_its_part(
    sent: int, taken: int, size: float
) -> None:
    pools = list(range(sent)), list(range(4, 4 + taken))
    latency_ns = 1_300 + 3_000

    took = moved_ns(*pools, size)

    assert took == pytest.approx(latency_ns + size / min(sent, taken) / 512)
    assert moved_ns(*pools, 2 * size) >= took


@pytest.mark.parametrize(
    ("sent", "taken", "size", "line"),
    [
        ([0], [4], -1, "bytes_per_request=-1: expected 0 or more"),
        ([], [4], 1, r"from_chips=\[\]: expected chips 0 to 143"),
        ([0], [144], 1, r"to_chips=\[144\]: expected chips 0 to 143"),
        ([0, 1], [1], 1, r"to_chips=\[1\]: expected other chips than from_chips"),
    ],
)
def test_what_cannot_be_moved_is_refused_in_one_line(
    sent: list[int], taken: list[int], size: float, line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        moved_ns(sent, taken, size)


def test_chips_far_from_each_other_in_one_pool_delay_nothing() -> None:
    # 0 to 1 and 72 to 73 in their trays
    assert moved_ns([0, 72], [1, 73], 1_024_000) == 1_000 + 1_300 + 1_000


def test_layers_go_while_a_step_computes_the_next_by_hand() -> None:
    step = {"begin_ns": 1000, "end_ns": 1040, "layers": 4}  # a layer every 10 ns
    assert layered_ready_ns(**step, free_ns=0, transfer_ns=20) == 1040, "the last one comes later"
    assert layered_ready_ns(**step, free_ns=0, transfer_ns=80) == 1070, "the first one, then three"
    assert layered_ready_ns(**step, free_ns=1050, transfer_ns=20) == 1065, "the links are taken"


@given(
    layer_ns=st.integers(0, 100),
    sent_ns=st.integers(0, 100),
    layers=st.integers(1, 12),
    free_ns=st.integers(0, 3000),
    reader_ns=st.integers(0, 100),
)
def test_no_layer_is_read_before_it_is_there(
    layer_ns: int, sent_ns: int, layers: int, free_ns: int, reader_ns: int
) -> None:
    there_ns, there = free_ns, []
    for layer in range(1, layers + 1):
        there_ns = max(there_ns, 1000 + layer * layer_ns) + sent_ns
        there.append(there_ns)
    end_ns = 1000 + layers * layer_ns
    ready_ns = layered_ready_ns(
        begin_ns=1000,
        end_ns=end_ns,
        free_ns=free_ns,
        transfer_ns=layers * sent_ns,
        layers=layers,
    )
    before_last = there[-2] if layers > 1 else free_ns
    assert max(end_ns, before_last) <= ready_ns <= max(end_ns, there[-1])
    if (layers - 1) * reader_ns >= sent_ns:
        assert all(each <= ready_ns + number * reader_ns for number, each in enumerate(there))
