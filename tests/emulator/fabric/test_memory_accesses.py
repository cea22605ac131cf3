import pytest

from emulator.fabric.memory_accesses import MemoryAccesses, near_memory
from emulator.fabric.schedules import Algorithm
from emulator.specs.systems import system_by_name

TRAINIUM2 = system_by_name("trn2.48xlarge").chip
TRAINIUM3 = system_by_name("trn3-nl72x2").chip
MANY = 10**9  # so many chips that each one's own part is nothing


def test_a_kangaring_spares_a_quarter_and_a_third_of_a_rings_accesses_as_the_vendor_says() -> None:
    memory = MemoryAccesses(TRAINIUM2, MANY, 2)

    # for two ranks of a chip: 1R1W twice against 1R2W, 2R1W twice against 3R1W
    assert memory.gather(Algorithm.RING) == pytest.approx(4)
    assert memory.gather(Algorithm.KANGARING) == pytest.approx(3)
    assert memory.reduce(Algorithm.RING) == pytest.approx(6)
    assert memory.reduce(Algorithm.KANGARING) == pytest.approx(4)


@pytest.mark.parametrize("algorithm", [Algorithm.MESH, Algorithm.RDH, Algorithm.HIERARCHICAL])
def test_one_rank_a_chip_reads_and_writes_once_and_adds_at_its_rate(algorithm: Algorithm) -> None:
    # 3 of 4 parts come from others
    assert MemoryAccesses(TRAINIUM2, 4, 1).gather(algorithm) == pytest.approx(2 * 0.75)
    assert MemoryAccesses(TRAINIUM2, 4, 1).reduce(algorithm) == pytest.approx(3 * 0.75)
    assert MemoryAccesses(TRAINIUM3, 4, 1).reduce(algorithm) == pytest.approx(2 * 0.75)


def test_a_single_step_adds_what_all_others_have() -> None:
    assert MemoryAccesses(TRAINIUM3, 4, 1).single_step() == pytest.approx(2 * 3)
    assert MemoryAccesses(TRAINIUM2, 4, 1).single_step() == pytest.approx(3 * 3)


def test_trainium3_adds_near_memory_at_the_full_rate_and_others_at_half() -> None:
    assert near_memory(TRAINIUM3).adding_write == 1
    assert near_memory(TRAINIUM2).adding_write == 2
    assert near_memory(system_by_name("dgx-h200").chip).adding_write == 2
