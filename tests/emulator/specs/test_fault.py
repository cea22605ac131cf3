from typing import Any

import pytest

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind, LinkTier

# The least that each kind asks for.
NEEDED: dict[FaultKind, dict[str, Any]] = {
    FaultKind.LOSE_CHIP: {"chip": 0},
    FaultKind.HANG_CHIP: {"chip": 0},
    FaultKind.SLOW_CHIP: {"chip": 0, "factor": 1.5},
    FaultKind.FAIL_STACK: {"chip": 0, "stack": 0},
    FaultKind.CUT_LINK: {"chip": 0, "tier": LinkTier.TRAY},
    FaultKind.PULL_SWITCH_TRAY: {"rack": 0},
}


def test_kinds_and_tiers_are_spelled_as_on_the_command_line() -> None:
    assert list(FaultKind) == [
        "lose-chip",
        "hang-chip",
        "slow-chip",
        "fail-stack",
        "cut-link",
        "pull-switch-tray",
    ]
    assert list(LinkTier) == ["tray", "backplane", "cross-rack"]


def test_every_kind_is_made_of_what_it_needs_and_of_nothing_less() -> None:
    assert NEEDED.keys() == set(FaultKind)
    for kind, fields in NEEDED.items():
        Fault(kind=kind, **fields)
        for name in fields:
            less = {other: value for other, value in fields.items() if other != name}
            with pytest.raises(ConfigError, match=f"^{name}="):
                Fault(kind=kind, **less)


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        (FaultKind.LOSE_CHIP, {"chip": -1}, "chip=-1: expected a chip of the partition"),
        (FaultKind.HANG_CHIP, {}, "chip=-1: expected a chip of the partition"),
        (FaultKind.SLOW_CHIP, {"chip": 2}, "factor=1.0: expected a number above 1"),
        (
            FaultKind.SLOW_CHIP,
            {"chip": 2, "factor": 0.5},
            "factor=0.5: expected a number above 1",
        ),
        (
            FaultKind.SLOW_CHIP,
            {"chip": 2, "factor": float("inf")},
            "factor=inf: expected a number above 1",
        ),
        (
            FaultKind.SLOW_CHIP,
            {"chip": 2, "factor": float("nan")},
            "factor=nan: expected a number above 1",
        ),
        (FaultKind.FAIL_STACK, {"chip": 2}, "stack=-1: expected an HBM stack of the chip"),
        (
            FaultKind.CUT_LINK,
            {"chip": 2},
            "tier=None: expected one of tray, backplane, cross-rack",
        ),
        (
            FaultKind.CUT_LINK,
            {"chip": 2, "tier": LinkTier.BACKPLANE, "lanes": -3},
            "lanes=-3: expected 0 (all) or more",
        ),
        (FaultKind.PULL_SWITCH_TRAY, {}, "rack=-1: expected a rack of the system"),
    ],
)
def test_what_is_missing_or_out_of_range_is_one_line(
    kind: FaultKind, fields: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Fault(kind=kind, **fields)

    assert str(caught.value) == line
