"""A chaos run's timed list of faults, from a seed.

Every event hits a whole machine and is repaired before the next, so a plan does not depend on
recovery. The same arguments give the same list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.health import TIERS, Health
from emulator.specs.link_lanes import lanes_of
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

SLOW_FACTOR_MAX: Final = 8.0  # assumed: a chip slower than this hangs for all practical purposes
SECONDS_PER_HOUR: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """One fault, or two at once, at `at_ns`; everything is repaired at `heal_ns`."""

    at_ns: int
    faults: tuple[Fault, ...]
    heal_ns: int


def counts_at_rates(
    seed: int, *, rates_per_hour: Mapping[FaultKind, float], duration_ns: int
) -> dict[FaultKind, int]:
    """Number of faults of each kind in a duration, as independent (Poisson) events.

    Raises ConfigError for a rate below 0.
    """
    for kind, rate in rates_per_hour.items():
        if rate < 0:
            raise ConfigError(field=f"rate of {kind}", value=rate, expected="at least 0")
    rng = np.random.default_rng(seed)
    hours = duration_ns / NS_PER_S / SECONDS_PER_HOUR
    return {kind: int(rng.poisson(rate * hours)) for kind, rate in rates_per_hour.items()}


def plan_faults(
    seed: int,
    *,
    counts: Mapping[FaultKind, int],
    doubles: int = 0,
    duration_ns: int,
    partition: Partition,
    system: SystemSpec,
) -> tuple[FaultEvent, ...]:
    """`counts` single faults of each kind and `doubles` pairs, in random order.

    Instants are spread like independent events, each at least 1 ns after the repair of the one
    before. A pair's kinds are drawn evenly from those of `counts`.

    Raises ConfigError for a count below 0, pairs without kinds or on a single chip, or a duration
    too short for the events.
    """
    events = sum(counts.values()) + doubles
    _check(counts, doubles, 2 * events, duration_ns, partition)
    rng = np.random.default_rng(seed)
    kinds = list(counts)
    planned = [(kind,) for kind in kinds for _ in range(counts[kind])]
    pairs = rng.integers(len(kinds), size=(doubles, 2)).tolist() if doubles else []
    wanted = [*planned, *((kinds[one], kinds[other]) for one, other in pairs)]
    # Two instants an event, fault and repair, all different.
    instants = np.sort(rng.integers(duration_ns - 2 * events, size=2 * events, endpoint=True))
    instants += np.arange(2 * events)
    return tuple(
        FaultEvent(
            at_ns=int(at_ns),
            faults=_draw(rng, wanted[index], partition, system),
            heal_ns=int(heal_ns),
        )
        for index, (at_ns, heal_ns) in zip(
            rng.permutation(events).tolist(), instants.reshape(-1, 2), strict=True
        )
    )


def _check(
    counts: Mapping[FaultKind, int],
    doubles: int,
    instants: int,
    duration_ns: int,
    partition: Partition,
) -> None:
    for what, count in (*counts.items(), ("doubles", doubles)):
        if count < 0:
            raise ConfigError(field=str(what), value=count, expected="at least 0")
    if doubles and not counts:
        raise ConfigError(field="doubles", value=doubles, expected="0 without kinds to draw from")
    if doubles and partition.chips < 2:
        raise ConfigError(field="doubles", value=doubles, expected="0 on a single chip")
    if duration_ns < instants:
        raise ConfigError(
            field="duration_ns", value=duration_ns, expected=f"at least {instants} for the events"
        )


def _draw(
    rng: np.random.Generator,
    kinds: tuple[FaultKind, ...],
    partition: Partition,
    system: SystemSpec,
) -> tuple[Fault, ...]:
    """One fault of each kind, each possible after those before on a whole machine."""
    health = Health.whole(system, partition)
    faults: list[Fault] = []
    for kind in kinds:
        faults.append(_draw_one(rng, kind, health, partition, system))
        health = health.after(faults[-1], system, partition)
    return tuple(faults)


def _draw_one(
    rng: np.random.Generator,
    kind: FaultKind,
    health: Health,
    partition: Partition,
    system: SystemSpec,
) -> Fault:
    """A fault of a chip in service in the partition, or of one of its racks."""
    if kind is FaultKind.PULL_SWITCH_TRAY:
        first = partition.first_chip // system.chips_per_rack
        last = (partition.first_chip + partition.chips - 1) // system.chips_per_rack
        return Fault(kind=kind, rack=int(rng.integers(first, last, endpoint=True)))
    chip = int(rng.choice(np.flatnonzero(health.in_service[: partition.chips])))
    if kind is FaultKind.SLOW_CHIP:
        return Fault(kind=kind, chip=chip, factor=float(rng.uniform(1.1, SLOW_FACTOR_MAX)))
    if kind is FaultKind.FAIL_STACK:
        return Fault(kind=kind, chip=chip, stack=int(rng.integers(system.chip.hbm_stacks.count)))
    if kind is FaultKind.CUT_LINK:
        column = int(rng.integers(len(TIERS)))
        tier = TIERS[column]
        left = lanes_of(system.chip)[tier].lanes.count - int(health.lanes_down[chip, column])
        if not left:  # the first of a pair took them all: the second takes another tier's
            tier = TIERS[(column + 1) % len(TIERS)]
            left = lanes_of(system.chip)[tier].lanes.count
        lanes = 0 if rng.random() < 0.5 else int(rng.integers(1, left, endpoint=True))
        return Fault(kind=kind, chip=chip, tier=tier, lanes=lanes)
    return Fault(kind=kind, chip=chip)
