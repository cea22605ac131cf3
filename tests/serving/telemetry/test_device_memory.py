"""HBM in neuron-monitor's categories, by logical core."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from emulator.memory.lnc import core_map
from emulator.specs.chips import chip_by_name
from emulator.specs.hbm_usage import HbmOwner, HbmUse, StackUsage
from serving.telemetry.device_memory import (
    CATEGORIES,
    CATEGORY_OF_USE,
    added,
    category_of,
    chip_bytes,
    core_bytes,
)
from serving.wire.machine_state import ChipState
from tests.serving.telemetry.machine_states import a_chip

TRAINIUM3 = chip_by_name("trainium3")


def a_chip_that_holds(*stacks: dict[str, int]) -> ChipState:
    held = tuple(
        StackUsage(stack=stack, failed=False, capacity_bytes=36 * 2**30, owner_bytes=owners)
        for stack, owners in enumerate(stacks)
    )
    return replace(a_chip(0), stacks=held)


def test_two_physical_cores_have_a_stack_to_themselves() -> None:
    chip = a_chip_that_holds({"kv": 100, "weights/experts": 7, "microcode": 3}, {"kv": 50}, {}, {})
    cores = core_bytes(chip, core_map(TRAINIUM3, 2))

    assert cores[0] == {
        "constants": 7,
        "model_code": 3,
        "model_shared_scratchpad": 0,
        "runtime_memory": 0,
        "tensors": 100,
    }
    assert [core["tensors"] for core in cores] == [100, 50, 0, 0]


def test_single_cores_share_theirs_and_the_odd_byte_is_the_first_one_s() -> None:
    chip = a_chip_that_holds({"kv": 101}, {}, {}, {"activations": 6})
    cores = core_bytes(chip, core_map(TRAINIUM3, 1))

    assert [core["tensors"] for core in cores] == [51, 50, 0, 0, 0, 0, 0, 0]
    assert [core["model_shared_scratchpad"] for core in cores] == [0, 0, 0, 0, 0, 0, 3, 3]


def test_every_use_of_hbm_has_a_category_and_every_category_a_use() -> None:
    assert set(CATEGORY_OF_USE) == set(HbmUse)
    assert set(CATEGORY_OF_USE.values()) == set(CATEGORIES)
    assert category_of(str(HbmOwner(use=HbmUse.TRAINING, name="moments"))) == "tensors"
    with pytest.raises(ValueError, match="nobody"):
        category_of("nobody/knows")


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*HbmUse, "weights/experts"]).map(str), st.integers(0, 99)),
        min_size=4,
        max_size=4,
    ),
    st.sampled_from(TRAINIUM3.lnc_sizes),
)
def test_no_byte_is_lost_or_counted_twice(stacks: list[dict[str, int]], lnc: int) -> None:
    chip = a_chip_that_holds(*stacks)
    cores = core_bytes(chip, core_map(TRAINIUM3, lnc))

    assert added(cores) == chip_bytes(chip)
    assert sum(chip_bytes(chip).values()) == chip.hbm_used_bytes
    assert len(cores) == TRAINIUM3.cores.count // lnc
