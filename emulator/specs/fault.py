"""Requested faults of the emulated machine; frozen, for transport."""

from dataclasses import dataclass
from enum import StrEnum

from emulator.errors import ConfigError


class FaultKind(StrEnum):
    """Kinds of faults."""

    LOSE_CHIP = "lose-chip"
    HANG_CHIP = "hang-chip"
    SLOW_CHIP = "slow-chip"
    FAIL_STACK = "fail-stack"
    CUT_LINK = "cut-link"
    PULL_SWITCH_TRAY = "pull-switch-tray"


class LinkTier(StrEnum):
    """Tiers of a chip's links."""

    TRAY = "tray"
    BACKPLANE = "backplane"
    CROSS_RACK = "cross-rack"


_OF_A_CHIP = (
    FaultKind.LOSE_CHIP,
    FaultKind.HANG_CHIP,
    FaultKind.SLOW_CHIP,
    FaultKind.FAIL_STACK,
    FaultKind.CUT_LINK,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Chips are numbered in the partition, racks in the system.

    Attributes:
        factor: SLOW_CHIP: slowdown of its engines; above 1.
        stack: FAIL_STACK: the HBM stack.
        tier: CUT_LINK: the chip's links of this tier.
        lanes: CUT_LINK: number of lanes; 0 means all of them.
        rack: PULL_SWITCH_TRAY: one switch tray of this rack.

    Raises ConfigError for a missing or invalid field; the machine's limits are checked elsewhere.
    """

    kind: FaultKind
    chip: int = -1
    factor: float = 1.0
    stack: int = -1
    tier: LinkTier | None = None
    lanes: int = 0
    rack: int = -1

    def __post_init__(self) -> None:
        if self.kind in _OF_A_CHIP and self.chip < 0:
            raise ConfigError("chip", self.chip, "a chip of the partition")
        if self.kind is FaultKind.SLOW_CHIP and not 1.0 < self.factor < float("inf"):
            raise ConfigError("factor", self.factor, "a number above 1")
        if self.kind is FaultKind.FAIL_STACK and self.stack < 0:
            raise ConfigError("stack", self.stack, "an HBM stack of the chip")
        if self.kind is FaultKind.CUT_LINK and self.tier is None:
            raise ConfigError("tier", None, f"one of {', '.join(LinkTier)}")
        if self.lanes < 0:
            raise ConfigError("lanes", self.lanes, "0 (all) or more")
        if self.kind is FaultKind.PULL_SWITCH_TRAY and self.rack < 0:
            raise ConfigError("rack", self.rack, "a rack of the system")
