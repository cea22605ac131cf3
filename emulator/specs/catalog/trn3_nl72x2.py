"""The Trn3 UltraServer of the second generation, NL72x2: 144 Trainium3 chips in two racks."""

from typing import Final

from emulator.specs.catalog.neuron_core import HOP, NETWORK_START, SDK
from emulator.specs.catalog.neuron_switches import SEMIANALYSIS, V1, hops, with_variants
from emulator.specs.catalog.rack_powers import LIQUID_PUE, rack_power_of
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec

_ARCH: Final = f"{SDK}, neuron-hardware/trn3-arch.rst"
_HOPS: Final = f"{SEMIANALYSIS}: NL72x2 with its first generation of switches"

_FIRST_GENERATION: Final = SystemSpec(
    name="trn3-nl72x2",
    chip=TRAINIUM3,
    switch_generation=V1,
    racks=Figure(2, "racks", SEMIANALYSIS),
    trays_per_rack=Figure(18, "trays", f"{_ARCH}: 36 servers of 4 chips, over two racks"),
    chips_per_tray=Figure(4, "chips", _ARCH),
    switch_trays_per_rack=Figure(10, "trays", SEMIANALYSIS),
    chips=Figure(144, "chips", _ARCH),
    cpus=Figure(36, "CPUs", f"{SEMIANALYSIS}: one Graviton4 per compute tray"),
    tray_hops=hops(1, _HOPS),
    backplane_hops=hops(3, f"{_HOPS}, across planes"),
    cross_rack_hops=hops(4, f"{_HOPS}, across planes and racks"),
    hop_ns=HOP,
    scale_out_start_ns=NETWORK_START,
    provisioned_watts=Figure(
        163_339,
        "W",
        "launch talk's transcript, unconfirmed, read as the two-rack system (1,134 W a "
        "chip); read as one rack it would be 2,269 W a chip",
    ),
    power=rack_power_of("trn3-nl72x2"),
    pue=LIQUID_PUE,
)

TRN3_NL72X2: Final = with_variants(
    _FIRST_GENERATION,
    v2_in_rack=hops(
        2, f"assumed: {SEMIANALYSIS} says two planes instead of four, fewer hops, not how many"
    ),
    v3_in_rack=hops(1, f"{SEMIANALYSIS}: NL72x2 with the third generation, in a rack"),
)
