"""Devices of the catalog and of a running engine."""

import pytest
from msgspec.structs import replace

from emulator.errors import ConfigError
from serving.telemetry.neuron_tools.device_inventory import (
    DeviceProcess,
    catalog_inventory,
    server_inventory,
    system_of,
)
from serving.wire.machine_state import ChipHealth
from tests.serving.telemetry.neuron_tools.looks import a_chip, a_snapshot

GIB = 2**30


def test_a_system_of_the_catalog_has_its_devices_cores_and_memory() -> None:
    inventory = catalog_inventory("trn3-nl72x2", lnc=None, chips=None)

    assert len(inventory.devices) == 144
    assert inventory.lnc == 2
    last = inventory.devices[-1]
    assert last.core_ids == (572, 573, 574, 575)
    assert last.memory_bytes == 154_618_822_656  # what the driver says of a Trainium3


def test_lnc_1_gives_a_device_all_its_cores() -> None:
    inventory = catalog_inventory("trn2.48xlarge", lnc=1, chips=2)

    assert [device.core_ids for device in inventory.devices] == [
        tuple(range(8)),
        tuple(range(8, 16)),
    ]
    # Of device 0's four neighbours only one is among the first two.
    assert [device.connected_to for device in inventory.devices] == [(1,), (0,)]


def test_a_device_alone_is_connected_to_nobody() -> None:
    assert catalog_inventory("trn3-nl72x2", lnc=2, chips=1).devices[0].connected_to is None


@pytest.mark.parametrize("chips", [0, 145])
def test_more_or_fewer_devices_than_there_are_is_one_line(chips: int) -> None:
    with pytest.raises(ConfigError, match=f"chips={chips}: expected 1 to 144 for trn3-nl72x2"):
        catalog_inventory("trn3-nl72x2", lnc=2, chips=chips)


def test_a_lost_device_is_missing_and_nobody_is_connected_to_it() -> None:
    chips = tuple(
        a_chip(chip, health=ChipHealth.LOST if chip == 2 else ChipHealth.UP) for chip in range(4)
    )
    look = a_snapshot(4, chips=chips)
    process = DeviceProcess(pid=7, command="ultraserve serve")
    inventory = server_inventory(look.snapshot.state, look.description, {0: (process,)})

    assert [device.device for device in inventory.devices] == [0, 1, 3]
    assert [device.connected_to for device in inventory.devices] == [(1, 3), (0, 3), (0, 1)]
    assert inventory.missing == {2: "lost"}
    assert inventory.devices[0].processes == (process,)
    assert inventory.devices[0].memory_bytes == 144 * GIB


def test_connections_follow_the_place_at_which_a_partition_begins() -> None:
    look = a_snapshot(4)
    state = replace(
        look.snapshot.state, partition=replace(look.description.partition, first_chip=2)
    )
    inventory = server_inventory(state, look.description, {})

    # Places 2 to 5: two of the first tray, two of the second.
    assert [device.connected_to for device in inventory.devices] == [(1,), (0,), (3,), (2,)]


def test_a_cluster_is_known_by_the_name_that_it_gives_itself() -> None:
    cluster = system_of("trn3-nl32x2").cluster(3)

    assert system_of(cluster.name) == cluster
