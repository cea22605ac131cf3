"""What an engine that sleeps gives up of HBM, and gets back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.hbm_usage import HbmUse, use_of
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.systems import system_by_name
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.sleeping_hbm import SLEEP_TAGS, SleepingHbm

CHIPS = 4


def a_machine() -> Machine:
    model = model_by_name("gpt-oss-120b")
    partition = Partition(chips=CHIPS, ep=CHIPS)
    placement = ExpertPlacement.even(
        layers=model.moe_layers, experts=model.experts, chips=CHIPS, ep=CHIPS
    )
    machine = Machine(
        system_by_name("trn3-nl72x2"), model, partition, placement, calibration=ROOFLINE
    )
    machine.take_kv(100_000)
    return machine


def held(machine: Machine, use: HbmUse) -> list[int]:
    """Bytes of each chip."""
    return [
        sum(
            count
            for stack in stacks
            for owner, count in stack.owner_bytes.items()
            if use_of(owner) is use
        )
        for stacks in machine.hbm.usage()
    ]


def test_level_1_copies_the_weights_over_the_host_s_link_there_and_back() -> None:
    machine = a_machine()
    weights = held(machine, HbmUse.WEIGHTS)
    sleeping = SleepingHbm(machine)
    asleep = sleeping.fall_asleep(1)

    assert asleep.bytes_storage == sleeping.host_bytes == sum(weights)
    # Four chips of one tray share 128 GB/s.
    assert asleep.duration_ns == pytest.approx(sum(weights) / 128, rel=1e-9)
    woken = sleeping.wake(SLEEP_TAGS)
    assert (woken.bytes_storage, woken.duration_ns) == (asleep.bytes_storage, asleep.duration_ns)
    assert sleeping.host_bytes == 0


def test_level_2_drops_them_at_once_and_reads_the_checkpoint_again() -> None:
    machine = a_machine()
    sleeping = SleepingHbm(machine)
    assert sleeping.fall_asleep(2).duration_ns == 0
    assert sleeping.host_bytes == 0
    woken = sleeping.wake(["weights"])
    assert woken == machine.renewal(range(CHIPS))
    # All experts once, and the replicas; at the drives' 28 GB/s a tray.
    experts = machine.model.experts * machine.model.moe_layers * machine.model.expert_bytes
    assert woken.bytes_storage > experts
    assert woken.duration_ns == pytest.approx(woken.bytes_storage / 28, rel=1e-9)


def test_what_computing_needs_besides_stays() -> None:
    machine = a_machine()
    sleeping = SleepingHbm(machine)
    stays = [use for use in HbmUse if use not in (HbmUse.WEIGHTS, HbmUse.KV)]
    before = [held(machine, use) for use in stays]
    sleeping.fall_asleep(1)
    assert [held(machine, use) for use in stays] == before
    assert any(sum(each) for each in before)


@pytest.mark.long
@given(
    doings=st.lists(
        st.sampled_from(["1", "2", "discard", "weights", "kv_cache", "everything"]), max_size=12
    )
)
def test_every_byte_comes_back_whatever_the_order(doings: list[str]) -> None:
    machine = a_machine()
    before = machine.hbm.usage()
    sleeping = SleepingHbm(machine)
    for doing in doings:
        if doing in ("1", "2"):
            sleeping.fall_asleep(int(doing))
        elif doing == "discard":
            sleeping.discard_kv()
        else:
            sleeping.wake(SLEEP_TAGS if doing == "everything" else [doing])
        machine.hbm.check()
        uses = {"weights": HbmUse.WEIGHTS, "kv_cache": HbmUse.KV}
        for tag, use in uses.items():
            assert (sum(held(machine, use)) == 0) == (tag in sleeping.asleep)
    sleeping.wake(SLEEP_TAGS)
    assert machine.hbm.usage() == before
    assert sleeping.asleep == ()


@pytest.mark.long
def test_other_words_are_refused() -> None:
    sleeping = SleepingHbm(a_machine())
    with pytest.raises(ConfigError, match="level"):
        sleeping.fall_asleep(3)
    sleeping.fall_asleep(1)
    with pytest.raises(ConfigError, match="tags"):
        sleeping.wake(["activations"])
    assert sleeping.asleep == SLEEP_TAGS
