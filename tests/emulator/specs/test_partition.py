import pytest

from emulator.errors import ConfigError
from emulator.specs.partition import Partition, check_partition
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2


def test_every_chip_of_a_partition_is_a_rank() -> None:
    assert Partition(chips=4, ep=4).ranks == 4


@pytest.mark.parametrize(
    ("chips", "tp", "ep", "field"), [(0, 1, 0, "chips"), (4, 2, 4, "tp"), (4, 1, 2, "ep")]
)
def test_what_is_not_built_is_refused_by_name(chips: int, tp: int, ep: int, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        Partition(chips=chips, tp=tp, ep=ep)


def test_the_whole_system_may_be_one_partition_and_no_more() -> None:
    check_partition(Partition(chips=144, ep=144), TRN3_NL72X2, {"m": 144})
    with pytest.raises(ConfigError, match=r"chips=145: expected at most 144.*trn3-nl72x2"):
        check_partition(Partition(chips=145, ep=145), TRN3_NL72X2, {"m": 145})


def test_experts_that_do_not_spread_evenly_are_refused_with_the_sizes_that_fit() -> None:
    with pytest.raises(
        ConfigError,
        match=r"chips=6: expected a divisor of 128 experts \(m\): 1, 2, 4, 8, 16, 32, 64, 128 ",
    ):
        check_partition(Partition(chips=6, ep=6), TRN3_NL72X2, {"m": 128})


def test_a_partition_passes_exactly_when_its_chips_divide_the_experts() -> None:
    for experts in range(1, 20):
        for chips in range(1, 20):
            partition = Partition(chips=chips, ep=chips)
            if experts % chips == 0:
                check_partition(partition, TRN3_NL72X2, {"m": experts})
            else:
                with pytest.raises(ConfigError, match=r"^chips="):
                    check_partition(partition, TRN3_NL72X2, {"m": experts})


def test_experts_of_two_models_must_both_spread_evenly() -> None:
    models = {"weights w": 144, "m": 128}
    check_partition(Partition(chips=16, ep=16), TRN3_NL72X2, models)

    expected = r"144 experts \(weights w\) and 128 experts \(m\): 1, 2, 4, 8, 16 would fit"
    for chips in (32, 36):
        with pytest.raises(ConfigError, match=expected):
            check_partition(Partition(chips=chips, ep=chips), TRN3_NL72X2, models)
