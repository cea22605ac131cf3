from itertools import chain

import pytest

from emulator.errors import ConfigError, NeuronError
from emulator.memory.lnc import LogicalCore, core_map
from emulator.specs.catalog.hopper import H100
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.units import GIB

LNC_SIZES = (1, 2, 8)


def test_lnc_1_has_eight_cores_that_share_a_stack_with_their_sibling() -> None:
    cores = core_map(TRAINIUM3, 1)

    assert len(cores.cores) == 8
    assert cores.cores[4] == LogicalCore(core=4, physical_cores=(4,), stacks=(2,), shares_with=(5,))
    assert cores.cores[5].shares_with == (4,)
    assert (cores.cores_per_region, cores.region_bytes) == (2, 36 * GIB)


def test_lnc_2_has_four_cores_with_a_stack_each() -> None:
    cores = core_map(TRAINIUM3, 2)

    assert len(cores.cores) == 4
    assert cores.cores[3] == LogicalCore(core=3, physical_cores=(6, 7), stacks=(3,), shares_with=())
    assert (cores.cores_per_region, cores.region_bytes) == (1, 36 * GIB)


def test_lnc_8_is_one_core_that_sees_the_whole_chip_and_is_marked_as_not_released() -> None:
    cores = core_map(TRAINIUM3, 8)

    assert cores.cores == (
        LogicalCore(core=0, physical_cores=tuple(range(8)), stacks=(0, 1, 2, 3), shares_with=()),
    )
    assert (cores.cores_per_region, cores.region_bytes) == (1, 144 * GIB)
    assert [core_map(TRAINIUM3, lnc).released for lnc in LNC_SIZES] == [True, True, False]


@pytest.mark.parametrize("lnc", LNC_SIZES)
def test_every_physical_core_belongs_to_one_logical_core_that_sees_its_stack(lnc: int) -> None:
    cores = core_map(TRAINIUM3, lnc)

    made_of = list(chain.from_iterable(core.physical_cores for core in cores.cores))
    assert made_of == list(range(8))
    for core in cores.cores:
        assert set(core.stacks) == {physical // 2 for physical in core.physical_cores}
        for other in core.shares_with:
            assert cores.cores[other].stacks == core.stacks


def test_an_ultraserver_has_1152_576_or_144_logical_cores_numbered_chip_after_chip() -> None:
    last = [
        cores.global_core(chip=143, core=len(cores.cores) - 1) + 1
        for cores in (core_map(TRAINIUM3, lnc) for lnc in LNC_SIZES)
    ]

    assert last == [1_152, 576, 144]
    for lnc in LNC_SIZES:
        cores = core_map(TRAINIUM3, lnc)
        count = len(cores.cores)
        numbers = [cores.global_core(chip=at // count, core=at % count) for at in range(3 * count)]
        assert numbers == list(range(3 * count))


@pytest.mark.parametrize("lnc", [0, 3, 4, 16, -1])
def test_another_lnc_is_refused_as_the_compiler_does(lnc: int) -> None:
    with pytest.raises(NeuronError, match=rf"^NCC_EARG001: lnc={lnc}: .*1, 2, 8.*trainium3") as got:
        core_map(TRAINIUM3, lnc)

    assert isinstance(got.value, ConfigError)


def test_the_one_logical_core_of_a_gpu_sees_all_stacks_however_its_cores_divide() -> None:
    mapped = core_map(H100, 132)  # five stacks

    assert mapped.cores[0].stacks == (0, 1, 2, 3, 4)
    assert mapped.region_bytes == H100.hbm_bytes
