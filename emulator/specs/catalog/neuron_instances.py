"""Systems of AWS's chips before Trainium3: inf2.48xlarge, trn1.32xlarge and the two of Trn2.

An instance is one tray, whose tray links form a ring or a torus.
"""

from dataclasses import replace
from math import prod
from typing import Final

from emulator.specs.catalog.neuron_core import HOP, NETWORK_START, SDK
from emulator.specs.catalog.rack_powers import AIR_PUE, rack_power_of
from emulator.specs.catalog.trainium1 import INFERENTIA2, TRAINIUM1
from emulator.specs.catalog.trainium2 import TRAINIUM2
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec, Topology

_HARDWARE: Final = f"{SDK}, neuron-hardware"
_CPU_WATTS: Final = 350
_CARD_WATTS: Final = 25
_DIMM_WATTS: Final = 10
_FANS: Final = 1.1
_CONVERSION: Final = 0.95


def _server_watts(chip: ChipSpec, chips: int, *, cards: int, dimms: int) -> Figure:
    """A server's watts, from its parts; unpublished."""
    parts = (
        chips * chip.budget_watts.value + 2 * _CPU_WATTS + cards * _CARD_WATTS + dimms * _DIMM_WATTS
    )
    return Figure(
        round(parts * _FANS / _CONVERSION),
        "W",
        f"assumed: unpublished; {chips} chips of {chip.budget_watts.value:g} W, two CPUs of "
        f"{_CPU_WATTS} W, {cards} network cards of {_CARD_WATTS} W, {dimms} DIMMs of "
        f"{_DIMM_WATTS} W, a tenth for fans, {_CONVERSION:.0%} conversion",
    )


def _instance(
    name: str, chip: ChipSpec, torus: tuple[int, ...], page: str, shape: str, watts: Figure
) -> SystemSpec:
    source = f"{_HARDWARE}/{page}"
    chips = prod(torus)
    one = Figure(1, "hops", "by definition: there is one server, nothing else")
    return SystemSpec(
        name=name,
        chip=chip,
        topology=Topology.TORUS,
        torus=torus,
        racks=Figure(1, "racks", "a server is counted as a rack of one tray"),
        trays_per_rack=Figure(1, "trays", f"{source}: one server"),
        chips_per_tray=Figure(chips, "chips", f"{source}: {shape}"),
        switch_trays_per_rack=Figure(0, "trays", f"{source}: {shape}"),
        chips=Figure(chips, "chips", source),
        cpus=Figure(2, "CPUs", "assumed: two sockets for the vCPUs of its page"),
        tray_hops=Figure(1, "hops", "a link; farther chips are several links on"),
        backplane_hops=one,
        cross_rack_hops=one,
        hop_ns=HOP,
        scale_out_start_ns=NETWORK_START if chip.scale_out_bytes_per_s else None,
        provisioned_watts=watts,
        pue=AIR_PUE,
        power=rack_power_of(name),
    )


INF2_48XLARGE: Final = _instance(
    "inf2.48xlarge",
    INFERENTIA2,
    (12,),
    "inf2-arch.rst",
    "a ring of 12",
    _server_watts(INFERENTIA2, 12, cards=1, dimms=24),
)
TRN1_32XLARGE: Final = _instance(
    "trn1.32xlarge",
    TRAINIUM1,
    (4, 4),
    "trn1-arch.rst",
    "a 2D torus, 4 x 4",
    _server_watts(TRAINIUM1, 16, cards=8, dimms=16),
)
TRN2_48XLARGE: Final = _instance(
    "trn2.48xlarge",
    TRAINIUM2,
    (4, 4),
    "trn2-arch.rst",
    "a 2D torus, 4 x 4",
    _server_watts(TRAINIUM2, 16, cards=16, dimms=32),
)

_SERVERS: Final = 4
_ULTRA: Final = f"{_HARDWARE}/trn2-arch.rst: four trn2u.48xlarge"
_THIRD_DIMENSION: Final = Figure(
    1, "hops", f"{_ULTRA}: a ring through chips of one place in each instance"
)

TRN2_ULTRASERVER: Final = replace(
    TRN2_48XLARGE,
    name="trn2-ultraserver",
    power=rack_power_of("trn2-ultraserver"),
    torus=(4, 4, 4),
    racks=Figure(
        _SERVERS,
        "racks",
        "by definition: each instance is counted as a rack, as all links between instances "
        "are of one kind; they stand in two racks (glennklockwood.com, Trainium2)",
    ),
    chips=Figure(64, "chips", _ULTRA),
    cpus=Figure(2 * _SERVERS, "CPUs", f"arithmetic: {_SERVERS} x 2 sockets"),
    backplane_hops=_THIRD_DIMENSION,
    cross_rack_hops=_THIRD_DIMENSION,
    provisioned_watts=Figure(
        _SERVERS * TRN2_48XLARGE.provisioned_watts.value,
        "W",
        f"{TRN2_48XLARGE.provisioned_watts.source}; four times",
    ),
)
