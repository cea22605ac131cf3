"""The Trn3 UltraServer of the second generation, NL72x2: 144 Trainium3 chips in two racks."""

from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec
from emulator.specs.trainium3 import TRAINIUM3

_ARCH: Final = "AWS Neuron SDK docs, neuron-hardware/trn3-arch.rst"
_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"
_HOPS: Final = f"{_SEMIANALYSIS}: NL72x2 with its first generation of switches"

TRN3_NL72X2: Final = SystemSpec(
    name="trn3-nl72x2",
    chip=TRAINIUM3,
    racks=Figure(value=2, unit="racks", source=_SEMIANALYSIS),
    trays_per_rack=Figure(
        value=18, unit="trays", source=f"{_ARCH}: 36 servers of 4 chips, over two racks"
    ),
    chips_per_tray=Figure(value=4, unit="chips", source=_ARCH),
    switch_trays_per_rack=Figure(value=10, unit="trays", source=_SEMIANALYSIS),
    chips=Figure(value=144, unit="chips", source=_ARCH),
    cpus=Figure(value=36, unit="CPUs", source=f"{_SEMIANALYSIS}: one Graviton4 per compute tray"),
    tray_hops=Figure(value=1, unit="hops", source=_HOPS),
    backplane_hops=Figure(value=3, unit="hops", source=f"{_HOPS}, across planes"),
    cross_rack_hops=Figure(value=4, unit="hops", source=f"{_HOPS}, across planes and racks"),
    hop_ns=Figure(
        value=1_000,
        unit="ns",
        source="assumed: unpublished for Trn3; the lower end of the 1-2 us per hop that AWS's "
        "collectives.rst gives for a ring on Trn2",
    ),
    provisioned_watts=Figure(
        value=163_339,
        unit="W",
        source="launch talk's transcript, unconfirmed, read as the two-rack system (1,134 W a "
        "chip); read as one rack it would be 2,269 W a chip",
    ),
    pue=Figure(
        value=1.5,
        unit="facility W per IT W",
        source=f"{_SEMIANALYSIS}: peak of a central-loop liquid-cooled site, about 1.5",
    ),
)
