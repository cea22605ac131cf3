"""How devices are joined, drawn."""

from serving.telemetry.neuron_tools.device_inventory import catalog_inventory
from serving.telemetry.neuron_tools.topology_drawing import topology_lines

# AWS Neuron SDK docs, neuron-ls.rst, `neuron-ls --topology`; without blanks at the lines' ends.
VENDOR = """\
Neuron Device Topology
        *        *        *        *
        │        │        │        │
        ▼        ▼        ▼        ▼
  *––►[ 0 ]◄––►[ 1 ]◄––►[ 2 ]◄––►[ 3 ]◄––*
        ▲        ▲        ▲        ▲
        │        │        │        │
        ▼        ▼        ▼        ▼
  *––►[ 4 ]◄––►[ 5 ]◄––►[ 6 ]◄––►[ 7 ]◄––*
        ▲        ▲        ▲        ▲
        │        │        │        │
        ▼        ▼        ▼        ▼
  *––►[ 8 ]◄––►[ 9 ]◄––►[10 ]◄––►[11 ]◄––*
        ▲        ▲        ▲        ▲
        │        │        │        │
        ▼        ▼        ▼        ▼
  *––►[12 ]◄––►[13 ]◄––►[14 ]◄––►[15 ]◄––*
        ▲        ▲        ▲        ▲
        │        │        │        │
        *        *        *        *

Legend:

          *––► = Wrap-around link""".splitlines()


def drawing(name: str, chips: int | None = None) -> list[str]:
    return topology_lines(catalog_inventory(name, lnc=None, chips=chips))


def test_a_torus_is_drawn_as_the_vendor_draws_it() -> None:
    assert drawing("trn2.48xlarge") == VENDOR


def test_a_place_without_a_device_is_a_dash() -> None:
    lines = drawing("trn2.48xlarge", 6)

    assert "[ 5 ]◄––►[ - ]◄––►[ - ]" in lines[8]
    assert len(lines) == len(VENDOR)


def test_a_ring_is_one_line_and_three_dimensions_are_layers() -> None:
    ring, cube = drawing("inf2.48xlarge"), drawing("trn2-ultraserver")

    assert ring[1].startswith("  *––►[ 0 ]◄––►[ 1 ]")
    assert ring[2:4] == ["", "Legend:"]
    assert [line for line in cube if "layer" in line][:4] == [f"  layer {n}" for n in range(4)]
    assert sum("[63 ]" in line for line in cube) == 1


def test_switched_racks_stand_side_by_side_with_all_devices_once() -> None:
    lines = drawing("trn3-nl72x2")
    text = "\n".join(lines)

    assert lines[2] == "  tray 0  [ 0 ]–[ 1 ]–[ 2 ]–[ 3 ]   [72 ]–[73 ]–[74 ]–[75 ]"
    assert all(text.count(f"[{chip:^3}]") == 1 for chip in range(144))
    assert "trays of a rack meet at its 10 switch trays" in text


def test_trays_without_a_device_are_left_away() -> None:
    trays = [line.split("[")[0].strip() for line in drawing("trn3-nl72x2", 6) if "[" in line]

    assert trays == ["tray 0", "tray 1"]
