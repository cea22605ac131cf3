"""The headline's walk with longer starts and drains: no source publishes how long a start takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from serving.analysis.day.day_comparison import DayQuestion, LoadComparison, compare
from serving.analysis.day.day_result import DayMachine
from serving.analysis.day.training_yield import GroupHandover

FACTORS: Final = (4.0, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlowerHandovers:
    """The first policy and its baselines under such starts and drains."""

    start_s: float
    drain_s: float
    load: LoadComparison


def with_slower_handovers(
    question: DayQuestion,
    machine: DayMachine,
    handover: GroupHandover,
    *,
    peak_share: float,
    start_s: float,
    factors: Sequence[float] = FACTORS,
) -> tuple[SlowerHandovers, ...]:
    """Walk the first policy at one load, with starts and drains multiplied by each factor."""
    asked = replace(question, policies=question.policies[:1], peak_shares=(peak_share,))
    found = []
    for factor in factors:
        slow_machine, slow = slowed(machine, handover, start_s=start_s, factor=factor)
        (load,) = compare(asked, slow_machine, slow, oracle=False)
        found.append(SlowerHandovers(start_s=start_s * factor, drain_s=slow.drain_s, load=load))
    return tuple(found)


def slowed(
    machine: DayMachine, handover: GroupHandover, *, start_s: float, factor: float
) -> tuple[DayMachine, GroupHandover]:
    """Both with start (chips idle in it) and drain times `factor`; raises ConfigError below 1."""
    if factor < 1:
        raise ConfigError("factor", factor, "at least 1")
    more_s, group_watts = start_s * (factor - 1), machine.curve.idle_watts
    trained = machine.trained
    works = trained.tokens_per_s > 0  # [groups + 1]
    leased = np.arange(trained.groups + 1)
    later = replace(
        trained,
        start_s=trained.start_s + np.where(works, more_s, 0.0),
        start_joules=trained.start_joules + np.where(works, more_s * group_watts * leased, 0.0),
    )
    slow = replace(
        handover,
        drain_s=handover.drain_s * factor,
        restore_s=handover.restore_s + more_s,
        restore_joules=handover.restore_joules + more_s * group_watts,
    )
    return replace(machine, trained=later), slow
