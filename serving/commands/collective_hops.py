"""The hop latency at which a vendor's claim for a collective comes true, all else as it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from emulator.specs.system import SystemSpec

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
