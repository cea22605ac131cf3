"""Small systems to compute by hand: tori of any size, a mesh, and networked boxes."""

from dataclasses import replace
from math import prod

from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec, Topology
from emulator.specs.systems import system_by_name


def figure(value: float, unit: str = "things") -> Figure:
    return Figure(value=value, unit=unit, source="made for a test")


def torus(
    *sizes: int, trays: int = 1, link_gb_per_s: float = 128, outside: float = 64
) -> SystemSpec:
    """A torus with links of `link_gb_per_s`, `outside` for dimensions beyond a tray.

    With several trays the last dimension joins them.
    """
    like = system_by_name("trn2-ultraserver")
    inside = sizes[:-1] if trays > 1 else sizes
    beyond = sizes[-1:] if trays > 1 else ()
    chip = replace(
        like.chip,
        link_tray_bytes_per_s=figure(2 * sum(s > 1 for s in inside) * link_gb_per_s * 1e9),
        link_cross_rack_bytes_per_s=figure(2 * max(sum(s > 1 for s in beyond), 1) * outside * 1e9),
        switches=(),
    )
    return replace(
        like,
        name=f"torus {sizes}",
        chip=chip,
        topology=Topology.TORUS,
        torus=sizes,
        racks=figure(1),
        trays_per_rack=figure(trays),
        chips_per_tray=figure(prod(sizes) // trays),
        chips=figure(prod(sizes)),
        hop_ns=figure(1_000),
        provisioned_watts=figure(10_000 * prod(sizes)),
        variants=(),
    )
