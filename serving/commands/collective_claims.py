"""The vendor's claims for NeuronSwitch against a torus: the sizes at which they hold, and the hop
latency at which they come true, all else as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from emulator.fabric.collectives import Operation
from emulator.specs.system import SystemSpec, Topology

# AWS, re:Invent 2025, AIM201: "up to" so many times lower latency; neither the ranks nor the sizes
# nor the algorithms are said.
CLAIMS: Final = {Operation.ALL_GATHER: 6.0, Operation.ALL_REDUCE: 2.0}

UNITS: Final = {
    **{"GiB": 2**30, "MiB": 2**20, "KiB": 2**10},
    **{"GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1},
}
"""Bytes of each unit; binary ones first, each kind from the largest on."""


def claim_of(operation: Operation, slow: SystemSpec, fast: SystemSpec) -> float | None:
    """The vendor's ratio of the time on `slow` to that on `fast`, or None.

    Switched UltraServers of Trainium3 are compared with a torus of Trainium2.
    """
    compared = (slow.chip.name, slow.topology, fast.chip.name, fast.topology)
    if compared != ("trainium2", Topology.TORUS, "trainium3", Topology.SWITCHED):
        return None
    return CLAIMS.get(operation)


def claim_text(claim: float, sizes: Sequence[int], times_as_long: Sequence[float]) -> str:
    """The claim beside the best ratio at `sizes`, ascending, and where it is reached."""
    best = int(np.argmax(times_as_long))
    reached = sizes_in_words(sizes, [times >= claim for times in times_as_long])
    where = f"reached at {reached}" if reached else "not reached"
    return (
        f"claim: up to {claim:g} times; here at most {times_as_long[best]:.2f}, at "
        f"{size_text(sizes[best])}; {where}"
    )


def sizes_in_words(sizes: Sequence[int], chosen: Sequence[bool]) -> str:
    """The chosen of `sizes` as runs of neighbours, such as "1 KiB to 8 KiB, 1 MiB"."""
    edges = np.flatnonzero(np.diff([0, *map(int, chosen), 0])).reshape(-1, 2)
    runs = ((size_text(sizes[begin]), size_text(sizes[end - 1])) for begin, end in edges.tolist())
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in runs)


def size_text(size_bytes: int) -> str:
    """The size in the largest unit, binary ones first, that leaves a whole number."""
    unit = next(unit for unit, unit_bytes in UNITS.items() if size_bytes % unit_bytes == 0)
    return f"{size_bytes // UNITS[unit]:,} {unit}"


_LONGEST: Final = 10.0
"""Hops are tried up to so many times the catalog's."""
_ROUNDS: Final = 20


def hop_text(claim: float, fast: SystemSpec, most_times: Callable[[SystemSpec], float]) -> str:
    """One sentence; `most_times` gives the best ratio of a system in `fast`'s place."""
    stated = fast.hop_ns.value

    def at(hop_ns: float) -> float:
        return most_times(replace(fast, hop_ns=replace(fast.hop_ns, value=hop_ns)))

    here = f"{stated:,.0f} ns{' (assumed)' if fast.hop_ns.assumed else ''} here"
    bounds = "bounds at full link rates, which have no range"
    if at(0.0) < claim:
        return (
            f"{claim:g} times comes true at no hop latency: hops that take no time, {here}, would "
            f"give {at(0.0):.2f}; {bounds}"
        )
    holds, fails = 0.0, _LONGEST * stated
    if at(fails) >= claim:
        return f"{claim:g} times comes true at any hop up to {fails:,.0f} ns, {here}; {bounds}"
    for _ in range(_ROUNDS):
        middle = (holds + fails) / 2
        holds, fails = (middle, fails) if at(middle) >= claim else (holds, middle)
    return f"{claim:g} times comes true while a hop takes at most {holds:,.0f} ns, {here}; {bounds}"
