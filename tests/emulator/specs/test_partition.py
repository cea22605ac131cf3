import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.partition import Partition, check_partition, shown_lnc
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS

DENSE = {"m": (64, 8)}  # 64 query heads that may not leave their 8 key/value heads
ANY_TP = {"m": (144, 144)}


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def test_eight_chips_in_ranks_of_two_by_hand() -> None:
    partition = Partition(chips=8, tp=2, ep=4, lnc=1, first_chip=16, spares=3)

    assert partition.ranks == 4
    assert [partition.rank_of_chip(chip) for chip in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(partition.chips_of_rank(2)) == [4, 5]


def test_a_chip_is_a_rank_at_lnc_2_without_spares_unless_asked() -> None:
    partition = Partition(chips=4, ep=4)

    assert (partition.ranks, partition.tp, partition.lnc) == (4, 1, 2)
    assert (partition.first_chip, partition.spares) == (0, 0)


@given(st.integers(1, 144), st.data())
def test_every_chip_belongs_to_the_one_rank_that_counts_it(chips: int, data: st.DataObject) -> None:
    tp, ep = (data.draw(st.sampled_from(divisors(chips))) for _ in range(2))
    partition = Partition(chips=chips, tp=tp, ep=ep)

    owned = [chip for rank in range(partition.ranks) for chip in partition.chips_of_rank(rank)]
    assert owned == list(range(chips))
    for rank in range(partition.ranks):
        assert {partition.rank_of_chip(chip) for chip in partition.chips_of_rank(rank)} == {rank}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"chips": 0, "ep": 1}, "chips=0: expected at least 1"),
        ({"chips": 4, "ep": 4, "first_chip": -1}, "first_chip=-1: expected at least 0"),
        ({"chips": 4, "ep": 4, "spares": -2}, "spares=-2: expected at least 0"),
        (
            {"chips": 12, "tp": 5, "ep": 12},
            "tp=5: expected chips = tp x dp, so tp divides the 12 chips: "
            "1, 2, 3, 4, 6, 12 would fit",
        ),
        (
            {"chips": 6, "tp": 0, "ep": 6},
            "tp=0: expected chips = tp x dp, so tp divides the 6 chips: 1, 2, 3, 6 would fit",
        ),
        (
            {"chips": 6, "ep": 4},
            "ep=4: expected experts lie on whole groups of ep chips, so ep divides the 6 chips: "
            "1, 2, 3, 6 would fit",
        ),
    ],
)
def test_a_rule_that_is_broken_is_said_in_one_line_with_what_would_fit(
    fields: dict[str, int], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Partition(**fields)

    assert str(caught.value) == line


def test_a_partition_is_made_exactly_when_tp_and_ep_divide_its_chips() -> None:
    for chips in range(1, 25):
        for size in range(-1, 26):
            for name in ("tp", "ep"):
                fields = {"chips": chips, "tp": 1, "ep": chips, name: size}
                if size in divisors(chips):
                    assert getattr(Partition(**fields), name) == size
                else:
                    with pytest.raises(ConfigError, match=f"^{name}={size}: "):
                        Partition(**fields)


class TestOnAMachine:
    def test_the_whole_system_may_be_one_partition(self) -> None:
        check_partition(Partition(chips=144, tp=144, ep=144), TRN3_NL72X2, ANY_TP)
        check_partition(Partition(chips=1, ep=1, first_chip=143), TRN3_NL72X2, ANY_TP)
        check_partition(Partition(chips=140, ep=140, spares=4), TRN3_NL72X2, ANY_TP)

    @pytest.mark.parametrize(
        ("partition", "line"),
        [
            (
                Partition(chips=145, ep=145),
                "chips=145: expected at most 144, of the 144 chips of trn3-nl72x2 from chip 0 on",
            ),
            (
                Partition(chips=8, ep=8, first_chip=140),
                "chips=8: expected at most 4, of the 144 chips of trn3-nl72x2 from chip 140 on",
            ),
            (
                Partition(chips=144, ep=144, spares=2),
                "chips=144: expected at most 142, of the 144 chips of trn3-nl72x2 from chip 0 on "
                "with 2 spares",
            ),
            (
                Partition(chips=4, ep=4, lnc=4),
                "lnc=4: expected one of 1, 2, 8 on trainium3",
            ),
            (
                Partition(chips=16, tp=16, ep=16),
                "tp=16: expected a divisor of the 8 head groups (64 heads) of m: "
                "1, 2, 4, 8 would fit on 16 chips",
            ),
            (
                Partition(chips=12, tp=3, ep=12),
                "tp=3: expected a divisor of the 8 head groups (64 heads) of m: "
                "1, 2, 4 would fit on 12 chips",
            ),
        ],
    )
    def test_what_does_not_fit_it_is_one_line(self, partition: Partition, line: str) -> None:
        with pytest.raises(ConfigError) as caught:
            check_partition(partition, TRN3_NL72X2, DENSE)

        assert str(caught.value) == line

    def test_the_model_that_does_not_divide_is_named(self) -> None:
        models = {"weights w": (8, 4), "m": (48, 48)}
        check_partition(Partition(chips=16, tp=4, ep=16), TRN3_NL72X2, models)

        with pytest.raises(ConfigError, match=r"^tp=8: .* 4 head groups \(8 heads\) of weights w"):
            check_partition(Partition(chips=16, tp=8, ep=16), TRN3_NL72X2, models)
        with pytest.raises(ConfigError, match=r"^tp=32: .* 48 head groups \(48 heads\) of m"):
            check_partition(Partition(chips=32, tp=32, ep=32), TRN3_NL72X2, {"m": models["m"]})

    def test_tp_passes_exactly_when_it_divides_the_head_groups(self) -> None:
        for groups in range(1, 17):
            for chips in (1, 6, 12, 16):
                for tp in divisors(chips):
                    partition = Partition(chips=chips, tp=tp, ep=chips)
                    if groups % tp == 0:
                        check_partition(partition, TRN3_NL72X2, {"m": (2 * groups, groups)})
                    else:
                        with pytest.raises(ConfigError, match=rf"^tp={tp}: "):
                            check_partition(partition, TRN3_NL72X2, {"m": (2 * groups, groups)})

    @given(st.integers(1, 150), st.integers(0, 150), st.integers(0, 150))
    def test_the_most_that_it_offers_fits_and_one_more_does_not(
        self, chips: int, first_chip: int, spares: int
    ) -> None:
        partition = Partition(chips=chips, ep=chips, first_chip=first_chip, spares=spares)
        most = 144 - first_chip - spares

        if chips <= most:
            check_partition(partition, TRN3_NL72X2, ANY_TP)
        else:
            with pytest.raises(ConfigError, match=rf"^chips={chips}: expected at most {most}, "):
                check_partition(partition, TRN3_NL72X2, ANY_TP)


def test_a_group_of_experts_has_a_block_of_chips_for_each_part_of_them() -> None:
    assert Partition(chips=16, tp=8, ep=1, expert_tp=8).expert_group == 8
    assert Partition(chips=16, tp=8, ep=4, expert_tp=2).expert_group == 8
    with pytest.raises(ConfigError, match=r"expert_group=32: expected .* 1, 2, 4, 8, 16 would fit"):
        Partition(chips=16, ep=16, expert_tp=2)
    with pytest.raises(ConfigError, match=r"expert_tp=0: expected at least 1"):
        Partition(chips=16, ep=16, expert_tp=0)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda each: each.name)
def test_a_chip_s_logical_cores_are_named_unless_all_its_processors_are_one(
    system: SystemSpec,
) -> None:
    chip = system.chip
    one_core = chip.lnc_sizes == (chip.cores.count,) and chip.cores.count > 1

    assert [shown_lnc(lnc) is None for lnc in chip.lnc_sizes] == [one_core] * len(chip.lnc_sizes)
    division = Partition(chips=2, tp=2, ep=1, lnc=chip.default_lnc.count).division
    assert ("lnc" in division) != one_core
