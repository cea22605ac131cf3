"""Machines out of service: failures drawn for each machine, and their repairs.

A machine's failures depend on the seed and on its number in the fleet alone, so that dividing a
building or adding one changes no other machine's fate. They come as a Poisson process while the
machine is there, in use or not (assumed), and each keeps it out for the repair's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.specs.system import SystemSpec
from serving.analysis.fleet.fleet_plan import FailureClass

Int64s = NDArray[np.int64]

_STREAM = 5
_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outages:
    """`out`: machines out of service in each look, any part of it counted as all; [looks].

    `failures` in the walk by the class's name; those before it may still be under repair.
    """

    out: Int64s
    failures: dict[str, int]


def outages(
    classes: Sequence[FailureClass],
    system: SystemSpec,
    machines: range,
    *,
    looks: int,
    look_s: float,
    seed: int,
) -> Outages:
    """Of the machines with these numbers, all of one system."""
    out = np.zeros(looks, dtype=np.int64)
    failures = dict.fromkeys((each.name for each in classes), 0)
    for machine in machines:
        rng = np.random.default_rng([seed, _STREAM, machine])
        is_out = np.zeros(looks, dtype=bool)
        for each in classes:
            repair_s = each.repair_hours * _HOUR_S
            began_s = -repair_s  # what failed earlier is repaired when the walk begins
            length_s = looks * look_s - began_s
            mtbf_s = each.machine_mtbf_hours(system) * _HOUR_S
            at_s = began_s + length_s * rng.random(rng.poisson(length_s / mtbf_s))
            failures[each.name] += int((at_s >= 0).sum())
            for failed_s in at_s.tolist():
                first, last = failed_s // look_s, -((-failed_s - repair_s) // look_s)
                is_out[max(0, int(first)) : max(0, int(last))] = True
        out += is_out
    return Outages(out=out, failures=failures)
