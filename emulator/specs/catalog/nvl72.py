"""NVIDIA's racks of 72 GPUs and 36 Graces behind one tier of switches: GB200 and GB300 NVL72."""

from typing import Final

from emulator.specs.catalog.blackwell import GB200, GB300
from emulator.specs.catalog.gpu import NETWORK_START, SWITCH_HOP
from emulator.specs.catalog.peak_pue import LIQUID
from emulator.specs.catalog.rack_powers import rack_power_of
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec

_ALONE: Final = Figure(
    value=1, unit="hops", source="by definition: all 72 share one tier, which counts as a tray"
)

_ALL_IN: Final = Figure(
    value=2_100,
    unit="W",
    source="InferenceX's dashboard, all-in utility kW per GPU: the same for both racks",
)


def _rack(name: str, chip: ChipSpec, watts: Figure) -> SystemSpec:
    """72 GPUs; their 18 compute trays are one "tray" here, as every two are one switch apart."""
    datasheet = f"NVIDIA {chip.name.upper()} NVL72 datasheet"
    return SystemSpec(
        name=name,
        chip=chip,
        switch_generation="18 NVSwitches in 9 trays, fifth-generation NVLink",
        racks=Figure(value=1, unit="racks", source=datasheet),
        trays_per_rack=Figure(
            value=1,
            unit="trays",
            source="by definition: one switched tier is one tray; the rack has 18 compute trays",
        ),
        chips_per_tray=Figure(value=72, unit="chips", source=f"{datasheet}: one NVLink domain"),
        switch_trays_per_rack=Figure(value=9, unit="trays", source=datasheet),
        chips=Figure(value=72, unit="chips", source=datasheet),
        cpus=Figure(value=36, unit="CPUs", source=f"{datasheet}: Grace"),
        tray_hops=Figure(
            value=1, unit="hops", source=f"{datasheet}: each GPU has a link to all 18 switches"
        ),
        backplane_hops=_ALONE,
        cross_rack_hops=_ALONE,
        hop_ns=SWITCH_HOP,
        scale_out_start_ns=NETWORK_START,
        provisioned_watts=watts,
        pue=LIQUID,
        power=rack_power_of(name),
        all_in_watts_per_chip=_ALL_IN,
    )


GB200_NVL72: Final = _rack(
    "gb200-nvl72",
    GB200,
    Figure(
        value=132_000,
        unit="W",
        source="Supermicro GB200 NVL72 datasheet: power shelves for 132 kW; elsewhere about 120 kW",
    ),
)
GB300_NVL72: Final = _rack(
    "gb300-nvl72",
    GB300,
    Figure(
        value=142_000,
        unit="W",
        source="SemiAnalysis, AWS Trainium3 Deep Dive: GB300 NVL72, up to 142 kW",
    ),
)
