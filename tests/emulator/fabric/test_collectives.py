from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.schedules import Algorithm
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.systems import system_by_name
from emulator.units import MB
from tests.emulator.fabric.tori import torus

GATHER, SCATTER, REDUCE = (
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.ALL_REDUCE,
)


def model(name: str, chips: int, per_chip: int = 1) -> CollectiveModel:
    return CollectiveModel(system_by_name(name), np.arange(chips)[None], ranks_per_chip=per_chip)


MODELS = {
    "tray": model("trn3-nl72x2", 4),
    "rack": model("trn3-nl72x2", 12),
    "racks": CollectiveModel(TRN3_NL72X2, np.array([[0, 1, 72, 73]])),
    "torus": model("trn2.48xlarge", 16),
    "cores": model("trn2.48xlarge", 16, 4),
    "mesh": model("mi300x-8", 8),
    "box": model("dgx-h200", 8),
    "boxes": CollectiveModel(system_by_name("dgx-h200").cluster(2), np.arange(16)[None]),
}


def time_ns(of: CollectiveModel, operation: Operation, size: float) -> float:
    return float(of.time(operation, np.array([size])).duration_ns[0])


def test_a_tray_of_four_by_hand() -> None:
    tray = MODELS["tray"]

    # 1,024,000 bytes: three quarters at 512 bytes a ns; a start of 1,300 ns and a hop of 1,000
    assert time_ns(tray, GATHER, 1_024_000) == 1_500 + 2_300
    assert time_ns(tray, REDUCE, 1_024_000) == 2 * (1_500 + 2_300)
    # 8,192 bytes: all of it to each of three others at once beats two steps
    assert time_ns(tray, REDUCE, 8_192) == 3 * 16 + 2_300
    assert time_ns(tray, Operation.ALL_TO_ALL, 1_024_000) == 1_500 + 2_300
    assert time_ns(tray, Operation.PERMUTE, 1_024_000) == 2_000 + 2_300
    assert time_ns(tray, GATHER, 0) == 0


def test_a_ring_of_four_links_both_ways_by_hand() -> None:
    ring = CollectiveModel(torus(4), np.arange(4)[None])
    start_ns = system_by_name("trn2-ultraserver").chip.dma_start_ns.value
    size = np.array([1_024_000.0])

    times = ring.times_by_algorithm(GATHER, size)

    # three steps, in each an eighth over both links of 128 bytes a ns
    assert times[Algorithm.RING].tolist() == [3 * (1_000 + start_ns + 1_000)]
    # a quarter to both neighbours, and half of it the long way round over each link, twice
    assert times[Algorithm.MESH].tolist() == [4_000 + start_ns + 2_000]


def test_bus_bandwidth_is_as_nccl_tests_count_it() -> None:
    tray = MODELS["tray"]
    size, duration = np.array([1_000.0]), np.array([10.0])  # 100 bytes a ns

    rates = {op: tray.bus_bytes_per_s(op, size, duration)[0] / 1e9 for op in Operation}

    assert rates == pytest.approx(
        {GATHER: 75, SCATTER: 75, REDUCE: 150, Operation.ALL_TO_ALL: 75, Operation.PERMUTE: 100}
    )


@pytest.mark.parametrize(
    ("name", "gb_per_s"),  # the links of one chip: the bound of Patarasuk and Yuan, 2009
    [("tray", 512), ("torus", 512), ("box", 450), ("mesh", 448)],
)
def test_a_large_all_reduce_comes_to_its_links_bandwidth_and_not_beyond(
    name: str, gb_per_s: float
) -> None:
    size = np.array([4e9])
    of = MODELS[name]

    bus = of.bus_bytes_per_s(REDUCE, size, of.time(REDUCE, size).duration_ns)[0] / 1e9

    assert 0.9 * gb_per_s < bus <= gb_per_s * (1 + 1e-9)


def test_a_large_all_gather_on_links_of_two_speeds_uses_four_fifths_of_all_of_them() -> None:
    # 4 links of 128 GB/s inside an instance and 2 of 64 to others: no algorithm has more than 640
    ultraserver = model("trn2-ultraserver", 64)
    size = np.array([4e9])

    times = ultraserver.times_by_algorithm(GATHER, size)

    bus = {name: ultraserver.bus_bytes_per_s(GATHER, size, ns)[0] for name, ns in times.items()}
    assert 0.8 * 640e9 < bus[Algorithm.STRIPED_RINGS] <= 640e9
    assert max(bus.values()) == bus[Algorithm.STRIPED_RINGS]


def test_the_algorithms_change_about_where_the_vendor_says_they_do() -> None:
    # 64 ranks of LNC 2 on 16 Trainium2: mesh below 1 MB, RDH up to 56 MB, KangaRing beyond (AWS
    # Neuron SDK docs, intranode-collective-comm.rst, "empirically"). Nothing here was fitted.
    named = (Algorithm.MESH, Algorithm.RDH, Algorithm.KANGARING)
    sizes = np.geomspace(1e4, 1e9, 400)
    times = MODELS["cores"].times_by_algorithm(GATHER, sizes[:, None])
    best = np.stack([times[name][:, 0] for name in named]).argmin(axis=0)

    changes = np.flatnonzero(np.diff(best))
    assert best[[0, *(changes + 1)]].tolist() == [0, 1, 2], "in the vendor's order"
    first, second = sizes[changes]
    assert first == pytest.approx(3.2 * MB, rel=0.05)
    assert second == pytest.approx(65 * MB, rel=0.05)


def test_a_step_of_a_ring_takes_the_one_to_two_microseconds_that_the_vendor_says() -> None:
    ring_ns = MODELS["cores"].times_by_algorithm(GATHER, np.array([1.0]))[Algorithm.RING][0]

    assert 1_000 < ring_ns / 63 < 2_000


def test_reductions_near_memory_leave_less_to_it() -> None:
    # 64 ranks, 4 a chip, of chips whose links are too fast to matter
    def scatter_ns(name: str, size: float) -> float:
        system = system_by_name(name)
        fast = replace(system.chip.link_tray_bytes_per_s, value=1e18)
        system = replace(system, chip=replace(system.chip, link_tray_bytes_per_s=fast))
        own = CollectiveModel(system, np.arange(2)[None], ranks_per_chip=4)
        long, short = (
            own.times_by_algorithm(SCATTER, np.array([size * factor]))[Algorithm.RING][0]
            for factor in (2, 1)
        )
        return float(long - short) * system.chip.hbm_bytes_per_s.value / 1e9 / size

    # accesses per byte: 2R1W on 4 ranks of a chip, 7/8 of the bytes; 1R and one adding write
    assert scatter_ns("trn2.48xlarge", 1e9) == pytest.approx(3 * 4 * 7 / 8)
    assert scatter_ns("trn3-nl72x2", 1e9) == pytest.approx(2 * 4 * 7 / 8)


def test_what_fits_into_sbuf_leaves_hbm_alone_on_trainium3() -> None:
    pair = model("trn3-nl72x2", 2, 4)
    fits = TRN3_NL72X2.chip.sbuf_bytes.count // 8  # what each of 4 ranks has, twice

    # half of 32 MiB at 512 bytes a ns; a hop, and a start between the chips and one on them
    assert time_ns(pair, GATHER, fits) == fits / 2 / 512 + 1_000 + 2 * 1_300
    # one byte more, and reading and writing HBM takes longer than that
    assert time_ns(pair, GATHER, fits + 1) > 1.1 * time_ns(pair, GATHER, fits)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("operation", Operation)
@given(size=st.floats(1, 1e10), more=st.floats(1, 100))
def test_a_larger_collective_never_takes_less_time(
    name: str, operation: Operation, size: float, more: float
) -> None:
    of = MODELS[name]

    assert time_ns(of, operation, size * more) >= time_ns(of, operation, size)


@pytest.mark.parametrize("name", MODELS)
def test_the_fastest_algorithm_is_chosen_for_every_size(name: str) -> None:
    sizes = np.geomspace(1e2, 1e10, 50)[:, None]
    of = MODELS[name]
    for operation in Operation:
        chosen = of.time(operation, sizes)
        times = of.times_by_algorithm(operation, sizes)
        assert chosen.duration_ns == pytest.approx(np.min(list(times.values()), axis=0))
        by_name = [times[chosen.algorithm(row, 0)][row, 0] for row in range(len(sizes))]
        assert chosen.duration_ns[:, 0] == pytest.approx(by_name)


def test_an_all_reduce_is_never_faster_than_an_all_gather_of_the_same_bytes() -> None:
    sizes = np.geomspace(1e2, 1e10, 50)[:, None]
    for of in MODELS.values():
        gather, both = (of.time(op, sizes).duration_ns for op in (GATHER, REDUCE))
        assert (both >= gather - 1e-6).all()


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_cut_links_slow_a_torus_down_and_never_speed_it_up(share: float) -> None:
    system = torus(4, 4)
    sizes = np.geomspace(1e2, 1e9, 30)[:, None]
    whole = CollectiveModel(system, np.arange(16)[None])
    links = LinkHealth.whole(system)
    if share:
        links.share[3] = share
    else:
        links = replace(links, cut_links=frozenset({(0, 1)}))
    fabric = AllToAll(system, 16, links=links)
    left = CollectiveModel(system, np.arange(16)[None], all_to_all=fabric)

    for operation in Operation:
        before, after = (of.time(operation, sizes).duration_ns for of in (whole, left))
        assert (after >= before - 1e-6).all()
        assert after[-1] > before[-1]


def test_groups_that_lie_alike_take_equally_long_and_others_their_own_time() -> None:
    groups = np.array([[0, 1], [2, 3], [4, 8], [5, 77]])
    together = CollectiveModel(TRN3_NL72X2, groups)
    size = np.full(4, 51_200.0)

    times = together.time(GATHER, size).duration_ns

    # 25,600 bytes at 512, 512, 512 and 128 a ns
    assert times.tolist() == [50 + 2_300, 50 + 2_300, 50 + 4_300, 200 + 5_300]


def test_a_rank_alone_waits_for_nobody_and_no_ranks_are_refused() -> None:
    assert time_ns(CollectiveModel(TRN3_NL72X2, np.array([[7]])), REDUCE, 1e9) == 0
    with pytest.raises(ConfigError, match="ranks_per_chip=0: expected at least 1"):
        CollectiveModel(TRN3_NL72X2, np.array([[7]]), ranks_per_chip=0)


def test_ranks_of_one_chip_add_up_through_its_memory() -> None:
    alone = model("trn2.48xlarge", 1, 4)

    start_ns = system_by_name("trn2.48xlarge").chip.dma_start_ns.value
    assert time_ns(alone, GATHER, 1) == pytest.approx(start_ns, abs=1)
    assert time_ns(alone, REDUCE, 1e9) > time_ns(alone, GATHER, 1e9) > 1e5


def test_two_boxes_send_little_over_their_cards_by_hand() -> None:
    boxes = system_by_name("dgx-h200").cluster(2)
    of = CollectiveModel(boxes, np.array([[0, 1, 8, 9]]))
    near_ns = boxes.chip.dma_start_ns.value + boxes.hop_ns.value
    far_ns = boxes.scale_out_start_ns.value

    times = of.times_by_algorithm(GATHER, np.array([9_000_000.0]))

    # a quarter over the cards at 50 bytes a ns, then a half over NVLink at 450
    assert times[Algorithm.HIERARCHICAL] == pytest.approx(45_000 + 10_000 + far_ns + near_ns)
    # half of it over the cards in a mesh
    assert times[Algorithm.MESH] == pytest.approx(90_000 + far_ns)
    # nine tenths end in the box, and a quarter of those over the cards is first; one tenth ends
    # with the cards, which take half of it
    striped = 0.9 * 45_000 + max(0.9 * 10_000, 0.1 * 90_000)
    assert times[Algorithm.STRIPED] == pytest.approx(striped + 2 * far_ns)


def test_each_rank_of_a_chip_has_its_own_bytes_for_everyone() -> None:
    one, four = (model("trn2.48xlarge", 16, per_chip) for per_chip in (1, 4))
    size = np.array([1e8])

    busy = [of.time(Operation.ALL_TO_ALL, size).link_busy_ns[0] for of in (one, four)]

    assert busy[1] == pytest.approx(4 * busy[0])
    alone = model("trn2.48xlarge", 1, 4)
    start_ns = system_by_name("trn2.48xlarge").chip.dma_start_ns.value
    assert time_ns(alone, Operation.ALL_TO_ALL, 1) == pytest.approx(start_ns, abs=1)


def test_chips_that_reach_nobody_are_left_out() -> None:
    links = LinkHealth.whole(TRN3_NL72X2)
    links.share[:4] = 0.0
    fabric = AllToAll(TRN3_NL72X2, 8, links=links)
    groups = np.arange(8).reshape(2, 4)

    times = CollectiveModel(TRN3_NL72X2, groups, all_to_all=fabric).time(
        GATHER, np.array([1_024_000.0, 1_024_000.0])
    )

    assert times.link_busy_ns.tolist() == [0, 1_500]
    assert times.duration_ns[1] == 1_500 + 2_300
