"""NVIDIA's racks of 72 GPUs and 36 Graces behind one tier of switches: GB200 and GB300 NVL72."""

from typing import Final

from emulator.specs.catalog.blackwell import GB200, GB300
from emulator.specs.catalog.gpu import NETWORK_START, SWITCH_HOP
from emulator.specs.catalog.rack_powers import LIQUID_PUE, rack_power_of
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec

_ALONE: Final = Figure(1, "hops", "by definition: all 72 share one tier, which counts as a tray")

_ALL_IN: Final = Figure(
    2_100, "W", "InferenceX's dashboard, all-in utility kW per GPU: the same for both racks"
)


def _rack(name: str, chip: ChipSpec, watts: Figure) -> SystemSpec:
    """72 GPUs; the 18 compute trays count as one "tray": every two are one switch apart."""
    datasheet = f"NVIDIA {chip.name.upper()} NVL72 datasheet"
    return SystemSpec(
        name=name,
        chip=chip,
        switch_generation="18 NVSwitches in 9 trays, fifth-generation NVLink",
        racks=Figure(1, "racks", datasheet),
        trays_per_rack=Figure(
            1,
            "trays",
            "by definition: one switched tier is one tray; the rack has 18 compute trays",
        ),
        chips_per_tray=Figure(72, "chips", f"{datasheet}: one NVLink domain"),
        switch_trays_per_rack=Figure(9, "trays", datasheet),
        chips=Figure(72, "chips", datasheet),
        cpus=Figure(36, "CPUs", f"{datasheet}: Grace"),
        tray_hops=Figure(1, "hops", f"{datasheet}: each GPU has a link to all 18 switches"),
        backplane_hops=_ALONE,
        cross_rack_hops=_ALONE,
        hop_ns=SWITCH_HOP,
        scale_out_start_ns=NETWORK_START,
        provisioned_watts=watts,
        pue=LIQUID_PUE,
        power=rack_power_of(name),
        all_in_watts_per_chip=_ALL_IN,
    )


GB200_NVL72: Final = _rack(
    "gb200-nvl72",
    GB200,
    Figure(
        132_000,
        "W",
        "Supermicro GB200 NVL72 datasheet: power shelves for 132 kW; elsewhere about 120 kW",
    ),
)
GB300_NVL72: Final = _rack(
    "gb300-nvl72",
    GB300,
    Figure(142_000, "W", "SemiAnalysis, AWS Trainium3 Deep Dive: GB300 NVL72, up to 142 kW"),
)
