"""How long after the end of others the requests of a traffic come, at the least."""

from typing import Final

import numpy as np

from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.simulator.scheduler_arrays import NEVER_NS, NONE

SHORTEST_NS: Final = NS_PER_S // 10
"""Engines go no shorter way ahead: each takes as long as some steps one by one."""


def pause_ns(traffic: Traffic) -> int:
    """Until then nothing has to know which requests have ended; `NEVER_NS` where none waits for
    another, 0 where that is less than `SHORTEST_NS`, or not known.
    """
    if traffic.loops is not None:
        return 0
    if traffic.sessions is None:
        return NEVER_NS
    waits = traffic.sessions.after != NONE
    least_ns = int(np.rint(traffic.sessions.think_s[waits] * NS_PER_S).min(initial=NEVER_NS))
    return 0 if least_ns < SHORTEST_NS else least_ns
