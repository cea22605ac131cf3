"""neuron-ls' tables and JSON against the vendor's own."""

import re

from serving.telemetry.neuron_tools.device_inventory import (
    DeviceInventory,
    DeviceProcess,
    NeuronDevice,
    catalog_inventory,
)
from serving.telemetry.neuron_tools.device_table import (
    device_json,
    header_lines,
    plain_table,
    process_table,
    topology_table,
)

# AWS Neuron SDK docs, neuron-ls.rst, a trn2n.48xlarge: the first rows of `neuron-ls`, in whose GB
# our tables say GiB.
VENDOR = """\
+--------+--------+----------+--------+---------------+--------------+---------------+------+
| NEURON | NEURON |  NEURON  | NEURON |   CONNECTED   |     PCI      |      CPU      | NUMA |
| DEVICE | CORES  | CORE IDS | MEMORY |    DEVICES    |     BDF      |   AFFINITY    | NODE |
+--------+--------+----------+--------+---------------+--------------+---------------+------+
| 0      | 4      | 0-3      | 96 GB  | 12, 3, 4, 1   | 0000:cc:00.0 | 48-95,144-191 | 1    |
| 1      | 4      | 4-7      | 96 GB  | 13, 0, 5, 2   | 0000:b5:00.0 | 48-95,144-191 | 1    |
| 10     | 4      | 40-43    | 96 GB  | 6, 9, 14, 11  | 0000:85:00.0 | 0-47,96-143   | 0    |
""".replace("96 GB ", "96 GiB").splitlines()

# The same document, `neuron-ls -j`, and a public sample of a trn2.3xlarge for the first two.
VENDOR_FIELDS = [
    "instance_type",
    "instance_id",
    "neuron_device",
    "bdf",
    "cpu_affinity",
    "numa_node",
    "connected_to",
    "nc_count",
    "logical_neuroncore_config",
    "memory_size",
    "neuroncore_ids",
    "neuron_processes",
]
SERVER = DeviceProcess(pid=268911, command="ultraserve serve " + "x" * 90)
ENGINE = DeviceProcess(pid=31, command="VLLM::EngineCore", runtime=False)
LOOKING = DeviceProcess(pid=269192, command="ultraserve ls -a", runtime=False)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def an_inventory(*processes: DeviceProcess) -> DeviceInventory:
    inventory = catalog_inventory("trn2.48xlarge", lnc=2, chips=2)
    devices = tuple(
        NeuronDevice(
            device=device.device,
            connected_to=device.connected_to,
            core_ids=device.core_ids,
            memory_bytes=device.memory_bytes,
            processes=processes,
        )
        for device in inventory.devices
    )
    return DeviceInventory(
        system=inventory.system, lnc=2, first_chip=0, devices=devices, missing={}
    )


def test_the_table_is_the_vendor_s_but_for_places_that_only_an_instance_has() -> None:
    lines = plain_table(catalog_inventory("trn2.48xlarge", lnc=2, chips=None))

    assert len(lines) == 16 + 5
    for vendor_row, row in ((4, 4), (5, 5), (6, 14)):
        assert cells(lines[row])[:5] == cells(VENDOR[vendor_row])[:5]
        assert cells(lines[row])[5:] == ["NA", "NA", "NA"]
    # The first five columns, titles and widths too; the others are narrower.
    for line, vendor in zip(lines[:5], VENDOR[:5], strict=True):
        upto = len("| NEURON | NEURON |  NEURON  | NEURON |   CONNECTED   |")
        assert line[:upto] == vendor[:upto]
    assert {len(line) for line in lines} == {len(lines[0])}


def test_the_header_names_type_id_and_lnc() -> None:
    assert header_lines(catalog_inventory("trn3-nl72x2", lnc=1, chips=4)) == [
        "instance-type: trn3-nl72x2",
        "instance-id: emulated",
        "logical-neuroncore-config: 1",
    ]


def test_wide_shows_who_uses_a_device() -> None:
    wide = process_table(an_inventory(SERVER, ENGINE), wide=True, everybody=False, looking=LOOKING)
    narrow = process_table(an_inventory(SERVER), wide=False, everybody=False, looking=LOOKING)

    titles = [" ".join(pair).strip() for pair in zip(cells(wide[1]), cells(wide[2]), strict=True)]
    assert titles == [
        "NEURON DEVICE",
        "NEURON CORES",
        "NEURON MEMORY",
        "CONNECTED DEVICES",
        "PCI BDF",
        "PID",
        "COMMAND",
        "RUNTIME VERSION",
    ]
    assert [cells(line)[5] for line in wide[4:6]] == ["268911", "268911"]
    assert len(cells(wide[4])[6]) == 80
    assert cells(wide[4])[6].endswith("...")
    assert len(cells(narrow[4])[6]) == 40


def test_all_processes_are_ruled_and_end_with_the_tool_s_own() -> None:
    lines = process_table(an_inventory(SERVER, ENGINE), wide=False, everybody=True, looking=LOOKING)

    assert [line[:2] for line in lines[3:]] == [
        "+-",
        "| ",
        "| ",
        "| ",
        "+-",
        "| ",
        "| ",
        "| ",
        "+-",
    ]
    assert [cells(line)[0] for line in lines[4:7]] == ["0", "", ""]
    assert [cells(line)[5] for line in lines[4:7]] == ["268911", "31", "269192"]


def test_a_device_without_processes_is_listed_all_the_same() -> None:
    lines = process_table(an_inventory(), wide=True, everybody=False, looking=LOOKING)

    assert [cells(line)[5:] for line in lines[4:6]] == [["", "", ""]] * 2


def test_topology_leaves_cores_and_places_away() -> None:
    lines = topology_table(catalog_inventory("trn2.48xlarge", lnc=2, chips=None))

    assert re.sub(" +", " ", lines[4]) == "| 0 | 4 | 96 GiB | 12, 3, 4, 1 | NA |"


def test_json_has_the_vendor_s_fields_and_null_for_what_is_not_there() -> None:
    first, second = device_json(an_inventory(SERVER, ENGINE))

    assert list(first) == VENDOR_FIELDS
    assert first == {
        "instance_type": "trn2.48xlarge",
        "instance_id": "emulated",
        "neuron_device": 0,
        "bdf": None,
        "cpu_affinity": None,
        "numa_node": None,
        "connected_to": [1],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 103_079_215_104,  # the vendor's own figure
        "neuroncore_ids": [0, 1, 2, 3],
        "neuron_processes": [
            {"pid": 268911, "command": SERVER.command, "neuron_runtime_version": "NA"}
        ],
    }
    assert second["neuroncore_ids"] == [4, 5, 6, 7]
