"""The generations of NeuronSwitch in Trn3 UltraServers, and the two assumptions on their power.

Hops count switches between two chips of a tray, of a rack, and of two racks; a hop's time is
unpublished, so it is a switch too.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.assumptions import Assumption, assumption_set
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec

SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"
V1: Final = "v1-160-lane"
_V2: Final = "v2-320-lane"
_V3: Final = "v3-ualink"
_ONE_MORE: Final = "assumed: unpublished; one more than in a rack, as with the first generation"
_WHY: Final = {
    V1: "Scorpio X, 160 lanes and 20 ports; what is delivered first",
    _V2: "320 lanes and 40 ports",
    _V3: "UALink, 72 ports or more",
}
_SWITCH_CHIP: Final = Figure(
    230,
    "ns",
    "assumed: twice the 115 ns of a PCIe 5 switch chip (Broadcom PEX89144), for retimers, "
    "cables and PCIe 6's error correction beside it",
)


def hops(value: int, source: str) -> Figure:
    """Switches on a way."""
    return Figure(value, "hops", source)


def cross_rack_hops_after(backplane: Figure) -> Figure:
    """Hops to the other rack where only those in a rack are published, or assumed."""
    return hops(backplane.count + 1, _ONE_MORE)


def _generation(name: str, backplane: Figure) -> Assumption:
    return Assumption(
        name,
        _WHY[name],
        {
            "switch_generation": name,
            "tray_hops": hops(1, SEMIANALYSIS),
            "backplane_hops": backplane,
            "cross_rack_hops": cross_rack_hops_after(backplane),
        },
    )


def with_variants(system: SystemSpec, *, v2_in_rack: Figure, v3_in_rack: Figure) -> SystemSpec:
    """`system`, of the first generation, with switches for the others and for its power."""
    watts = system.provisioned_watts.value
    as_rack = Assumption(
        "rack",
        "the talk's own words are a single rack; for 32 chips in air it is hard to believe",
        {
            "provisioned_watts": Figure(
                2 * watts,
                "W",
                f"launch talk's transcript, unconfirmed, read as one rack: 2 x {watts:,.0f}",
            )
        },
    )
    generations = (_generation(_V2, v2_in_rack), _generation(_V3, v3_in_rack))
    return replace(
        system,
        variants=(
            assumption_set(system, "switch-generation", *generations, default=V1, why=_WHY[V1]),
            assumption_set(
                system,
                "power",
                as_rack,
                default="system",
                why=(
                    "of both racks; per chip it then is about the same in both UltraServers, as "
                    "SemiAnalysis says"
                ),
            ),
            assumption_set(
                system,
                "hop",
                Assumption(
                    "switch-chip",
                    "one pass through a switch; the vendor says that more of them cost "
                    "next to nothing",
                    {"hop_ns": _SWITCH_CHIP},
                ),
                default="ring-step",
                why="what the vendor says of a step of a ring on Trn2, as for the torus",
            ),
        ),
    )
