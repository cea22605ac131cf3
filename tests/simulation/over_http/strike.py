"""A chaos run's list of strikes on a server, from a seed. Pure.

The chips at a strike are known only then, so a plan names a chip by a share of those that serve:
the same plan fits every machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import numpy as np

from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.health import TIERS

SLOW_FACTOR_MAX: Final = 4.0
SECOND_KILL_S_MAX: Final = 0.6
"""Of a kill within a recovery, where no starting process shows its progress."""
STRIKES_IN_HAND_OVER: Final = 2


class Means(StrEnum):
    """The way of a strike.

    CALL: through the control service. KILL: SIGKILL to a chip's process. KILL_IN_RECOVERY: two
    chips, the second during the first one's recovery. KILL_IN_HEAL: one during another's repair.
    PAUSE: SIGSTOP, and SIGCONT before it must be noticed. STOP: SIGSTOP for good. LOSE_NODE: every
    process of a Ray node, its chips' too, at once; then a node comes back. HAND_OVER: a group of
    chips goes to training, and returns some strikes later.
    """

    CALL = "call"
    KILL = "kill"
    KILL_IN_RECOVERY = "kill in a recovery"
    KILL_IN_HEAL = "kill in a repair"
    PAUSE = "pause"
    STOP = "stop"
    LOSE_NODE = "lose a node"
    HAND_OVER = "hand over"


class Heal(StrEnum):
    """Repair after a strike: none, its own damage, or everything."""

    NOTHING = "nothing"
    THIS = "this"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One strike.

    Attributes:
        kind: of the fault, for CALL.
        chip_share, other_share: choose a serving chip, from 0 to below 1, and a pair's second one.
        rack_share: chooses a rack; `stack_share` an HBM stack.
        factor, tier, lanes: as in Fault.
        after_s: wall seconds since the strike before, in which requests are answered.
        second_after_s: wall seconds until the second kill, or of the pause.
    """

    means: Means
    kind: FaultKind | None = None
    chip_share: float = 0.0
    other_share: float = 0.0
    rack_share: float = 0.0
    stack_share: float = 0.0
    factor: float = 2.0
    tier: LinkTier | None = None
    lanes: int = 0
    after_s: float = 0.0
    second_after_s: float = 0.0
    heal: Heal = Heal.NOTHING

    @property
    def name(self) -> str:
        """Its kind by CALL, with the tier of a cut link; otherwise its means."""
        if self.kind is None:
            return self.means.value
        return f"{self.kind} {self.tier}" if self.tier else str(self.kind)

    @property
    def faults(self) -> int:
        """The least number of faults; a node has as many as chips."""
        pair = (Means.KILL_IN_RECOVERY, Means.KILL_IN_HEAL)
        return 2 if self.means in pair else 0 if self.means in _NO_FAULT else 1

    def fault(self, serving: Sequence[int], *, racks: int, stacks: int) -> Fault:
        assert self.kind is not None
        if self.kind is FaultKind.PULL_SWITCH_TRAY:
            return Fault(kind=self.kind, rack=int(self.rack_share * racks))
        chip = picked(serving, self.chip_share)
        match self.kind:
            case FaultKind.SLOW_CHIP:
                return Fault(kind=self.kind, chip=chip, factor=self.factor)
            case FaultKind.FAIL_STACK:
                return Fault(kind=self.kind, chip=chip, stack=int(self.stack_share * stacks))
            case FaultKind.CUT_LINK:
                return Fault(kind=self.kind, chip=chip, tier=self.tier, lanes=self.lanes)
        return Fault(kind=self.kind, chip=chip)


_NO_FAULT: Final = (Means.PAUSE, Means.HAND_OVER)


def picked(candidates: Sequence[int], share: float) -> int:
    return candidates[int(share * len(candidates))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Numbers of strikes: `calls` by kind, the others by means; links are cut tier by tier."""

    calls: Mapping[FaultKind, int]
    others: Mapping[Means, int]
    gap_s_mean: float
    heal_chance: float = 0.5

    @property
    def strikes(self) -> int:
        return sum(self.calls.values()) + sum(self.others.values())


FULL: Final = Intensity(
    calls=MappingProxyType(
        {
            FaultKind.LOSE_CHIP: 30,
            FaultKind.HANG_CHIP: 20,
            FaultKind.SLOW_CHIP: 20,
            FaultKind.FAIL_STACK: 24,
            FaultKind.CUT_LINK: 30,
            FaultKind.PULL_SWITCH_TRAY: 16,
        }
    ),
    others=MappingProxyType(
        {
            Means.KILL: 30,
            Means.KILL_IN_RECOVERY: 10,
            Means.KILL_IN_HEAL: 8,
            Means.PAUSE: 8,
            Means.STOP: 10,
            Means.LOSE_NODE: 2,
            Means.HAND_OVER: 6,
        }
    ),
    gap_s_mean=0.5,
)
SMALL: Final = Intensity(
    calls=MappingProxyType(
        dict.fromkeys(FaultKind, 2) | {FaultKind.CUT_LINK: 3, FaultKind.LOSE_CHIP: 3}
    ),
    others=MappingProxyType(
        {
            Means.KILL: 3,
            Means.KILL_IN_RECOVERY: 2,
            Means.KILL_IN_HEAL: 2,
            Means.PAUSE: 1,
            Means.STOP: 2,
            Means.LOSE_NODE: 1,
            Means.HAND_OVER: 1,
        }
    ),
    gap_s_mean=0.3,
)


def plan_strikes(seed: int, intensity: Intensity) -> tuple[Strike, ...]:
    """All strikes of `intensity`, in random order."""
    rng = np.random.default_rng(seed)
    wanted: list[tuple[Means, FaultKind | None]] = [
        *((Means.CALL, kind) for kind, count in intensity.calls.items() for _ in range(count)),
        *((means, None) for means, count in intensity.others.items() for _ in range(count)),
    ]
    cuts = Counter[LinkTier]()
    strikes = []
    for index in rng.permutation(len(wanted)).tolist():
        means, kind = wanted[index]
        tier = None
        if kind is FaultKind.CUT_LINK:
            tier = TIERS[cuts.total() % len(TIERS)]
            cuts[tier] += 1
        strikes.append(_draw(rng, means, kind, tier, intensity))
    return tuple(strikes)


def _draw(
    rng: np.random.Generator,
    means: Means,
    kind: FaultKind | None,
    tier: LinkTier | None,
    intensity: Intensity,
) -> Strike:
    shares = rng.random(4).tolist()
    heal = Heal.NOTHING
    if rng.random() < intensity.heal_chance:
        heal = Heal.ALL if rng.random() < 0.5 else Heal.THIS
    return Strike(
        means=means,
        kind=kind,
        chip_share=shares[0],
        other_share=shares[1],
        rack_share=shares[2],
        stack_share=shares[3],
        factor=float(rng.uniform(1.2, SLOW_FACTOR_MAX)),
        tier=tier,
        lanes=int(rng.integers(2)),  # 0 means all of them
        after_s=float(min(rng.exponential(intensity.gap_s_mean), 4 * intensity.gap_s_mean)),
        second_after_s=float(rng.uniform(0.0, SECOND_KILL_S_MAX)),
        heal=heal,
    )
