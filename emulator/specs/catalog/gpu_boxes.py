"""Boxes of eight GPUs: NVIDIA's DGX, switched, and AMD's, with a link for every two."""

from typing import Final

from emulator.specs.catalog.blackwell import B200, B300
from emulator.specs.catalog.cdna import MI300X, MI325X, MI355X
from emulator.specs.catalog.gpu import LINK_HOP, NETWORK_START, SWITCH_HOP
from emulator.specs.catalog.hopper import H100, H200, H800
from emulator.specs.catalog.rack_powers import AIR_PUE, LIQUID_PUE, rack_power_of
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec, Topology

_GPUS: Final = 8
_INFERENCEX: Final = "InferenceX's dashboard, all-in utility kW per GPU of this machine"
_ALONE: Final = Figure(1, "hops", "by definition: there is one box, nothing else")


def _box(
    *,
    name: str,
    chip: ChipSpec,
    topology: Topology,
    switches: str,
    hop_ns: Figure,
    watts: Figure,
    pue: Figure = AIR_PUE,
    all_in_watts: float | None = None,
) -> SystemSpec:
    """Eight GPUs on one board, which count as one tray of one rack."""
    board = f"{chip.maker}: {_GPUS} GPUs on one board"
    return SystemSpec(
        name=name,
        chip=chip,
        topology=topology,
        switch_generation=switches,
        racks=Figure(1, "racks", "a box is counted as a rack of one tray"),
        trays_per_rack=Figure(1, "trays", board),
        chips_per_tray=Figure(_GPUS, "chips", board),
        switch_trays_per_rack=Figure(0, "trays", "none: all on the board"),
        chips=Figure(_GPUS, "chips", board),
        cpus=Figure(2, "CPUs", f"{chip.maker}'s reference server: two sockets"),
        tray_hops=Figure(1, "hops", "one switch, or one direct link"),
        backplane_hops=_ALONE,
        cross_rack_hops=_ALONE,
        hop_ns=hop_ns,
        scale_out_start_ns=NETWORK_START,
        provisioned_watts=watts,
        pue=pue,
        power=rack_power_of(name),
        all_in_watts_per_chip=(
            None if all_in_watts is None else Figure(all_in_watts, "W", _INFERENCEX)
        ),
    )


def _dgx(
    name: str, chip: ChipSpec, switches: str, watts: Figure, all_in_watts: float | None = None
) -> SystemSpec:
    return _box(
        name=name,
        chip=chip,
        topology=Topology.SWITCHED,
        switches=switches,
        hop_ns=SWITCH_HOP,
        watts=watts,
        all_in_watts=all_in_watts,
    )


def _mesh(
    name: str, chip: ChipSpec, pue: Figure = AIR_PUE, all_in_watts: float | None = None
) -> SystemSpec:
    return _box(
        name=name,
        chip=chip,
        topology=Topology.MESH,
        switches="",
        hop_ns=LINK_HOP,
        watts=Figure(
            _GPUS * chip.budget_watts.value + _DGX_H100_OVERHEAD_WATTS,
            "W",
            f"assumed: 8 x {chip.budget_watts.value:,.0f} W and the 4,600 W that a DGX H100 "
            "has beside its GPUs; makers of these boxes give their power supplies only",
        ),
        pue=pue,
        all_in_watts=all_in_watts,
    )


_DGX_H100_WATTS: Final = 10_200
_DGX_H100_OVERHEAD_WATTS: Final = _DGX_H100_WATTS - _GPUS * 700
_HOPPER_SWITCHES: Final = "four NVSwitches, third generation"
_BLACKWELL_SWITCHES: Final = "two NVSwitches, fifth-generation NVLink"

DGX_H100: Final = _dgx(
    "dgx-h100",
    H100,
    _HOPPER_SWITCHES,
    Figure(_DGX_H100_WATTS, "W", "NVIDIA DGX H100 datasheet: 10.2 kW max"),
    all_in_watts=1_730,
)
DGX_H800: Final = _dgx(
    "dgx-h800",
    H800,
    _HOPPER_SWITCHES,
    Figure(_DGX_H100_WATTS, "W", "as DGX H100, whose boards and budgets it has: 10.2 kW max"),
)
DGX_H200: Final = _dgx(
    "dgx-h200",
    H200,
    _HOPPER_SWITCHES,
    Figure(10_200, "W", "NVIDIA DGX H200 datasheet: 10.2 kW max"),
    all_in_watts=1_730,
)
DGX_B200: Final = _dgx(
    "dgx-b200",
    B200,
    _BLACKWELL_SWITCHES,
    Figure(14_300, "W", "NVIDIA DGX B200 user guide: 14.3 kW max"),
    all_in_watts=2_170,
)
DGX_B300: Final = _dgx(
    "dgx-b300",
    B300,
    _BLACKWELL_SWITCHES,
    Figure(14_000, "W", "NVIDIA DGX B300 datasheet: about 14 kW"),
    all_in_watts=2_170,
)
MI300X_8: Final = _mesh("mi300x-8", MI300X, all_in_watts=1_790)
MI325X_8: Final = _mesh("mi325x-8", MI325X, all_in_watts=2_180)
MI355X_8: Final = _mesh("mi355x-8", MI355X, pue=LIQUID_PUE, all_in_watts=2_650)
