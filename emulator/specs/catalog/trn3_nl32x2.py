"""The Trn3 UltraServer of the first generation, NL32x2: 64 Trainium3 chips in two racks, in air.

A tray is a board of two chips; AWS's server is 16 chips: eight boards and a CPU tray.
"""

from typing import Final

from emulator.specs.catalog.neuron_core import HOP, NETWORK_START, SDK
from emulator.specs.catalog.neuron_switches import SEMIANALYSIS, V1, hops, with_variants
from emulator.specs.catalog.rack_powers import AIR_PUE, rack_power_of
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec

_ARCH: Final = f"{SDK}, neuron-hardware/trn3-arch.rst"
_HOPS: Final = f"{SEMIANALYSIS}: NL32x2 with its first generation of switches"

_FIRST_GENERATION: Final = SystemSpec(
    name="trn3-nl32x2",
    chip=TRAINIUM3,
    switch_generation=V1,
    racks=Figure(2, "racks", SEMIANALYSIS),
    trays_per_rack=Figure(16, "trays", f"{SEMIANALYSIS}: boards of two chips"),
    chips_per_tray=Figure(2, "chips", SEMIANALYSIS),
    switch_trays_per_rack=Figure(4, "trays", f"{SEMIANALYSIS}; 5 where they can be swapped hot"),
    chips=Figure(
        64,
        "chips",
        f"{_ARCH}: 4 servers of 16 chips; text for both generations says 4 chips a server",
    ),
    cpus=Figure(
        8,
        "CPUs",
        f"assumed: two x86 sockets in each of the 4 CPU trays ({SEMIANALYSIS}), for 768 "
        f"vCPUs ({_ARCH})",
    ),
    tray_hops=hops(1, f"{_HOPS}: same plane; the board's own lanes go straight"),
    backplane_hops=hops(2, f"{_HOPS}, to the other plane"),
    cross_rack_hops=hops(3, f"{_HOPS}, to the other plane and rack"),
    hop_ns=HOP,
    scale_out_start_ns=NETWORK_START,
    provisioned_watts=Figure(
        67_293,
        "W",
        "launch talk's transcript, unconfirmed, read as the two-rack system (1,051 W a "
        "chip); read as one rack it would be 2,103 W a chip",
    ),
    power=rack_power_of("trn3-nl32x2"),
    pue=AIR_PUE,
)

TRN3_NL32X2: Final = with_variants(
    _FIRST_GENERATION,
    v2_in_rack=hops(1, f"{SEMIANALYSIS}: NL32x2 with the second generation, any to any in a rack"),
    v3_in_rack=hops(1, f"{SEMIANALYSIS}: NL32x2 with the third generation"),
)
