"""Failures against their rate, their repairs by hand, and whose failures they are."""

import numpy as np
import pytest

from emulator.specs.systems import system_by_name
from serving.analysis.fleet.fleet_plan import FailureClass
from serving.analysis.fleet.outages import Outages, outages

SYSTEM = system_by_name("trn2-ultraserver")
CLASS = FailureClass(
    name="chip", per="chip", mtbf_hours=6_400.0, repair_hours=5.0, source="-", repair_source="-"
)
"""A machine of 64 chips fails every 100 h."""


def drawn(machines: range, *, classes: tuple[FailureClass, ...] = (CLASS,)) -> Outages:
    return outages(classes, SYSTEM, machines, looks=12 * 168, look_s=300.0, seed=1)


def test_a_machines_rate_counts_its_parts() -> None:
    assert CLASS.machine_mtbf_hours(SYSTEM) == 100.0


def test_failures_come_at_the_rate_and_keep_machines_out_for_the_repair() -> None:
    found = drawn(range(1_000))

    expected = 1_000 * 168 / 100
    assert found.failures["chip"] == pytest.approx(expected, abs=4 * expected**0.5)
    # Out of a renewal of failures within others' repairs: 1 - exp(-5/100), and half a look more.
    assert found.out.mean() / 1_000 == pytest.approx(1 - np.exp(-(5 + 1 / 12) / 100), rel=0.05)


def test_a_repair_takes_its_time_rounded_up() -> None:
    out = drawn(range(1)).out
    begins, ends = (np.flatnonzero(np.diff(out) == step) for step in (1, -1))

    lengths = [end - begin for begin, end in zip(begins, ends[ends > begins[0]], strict=False)]

    assert lengths
    assert min(lengths) >= 60
    assert set(lengths) & {60, 61}


def test_a_machines_fate_is_its_own() -> None:
    both, first, second = drawn(range(40)), drawn(range(25)), drawn(range(25, 40))

    assert (both.out == first.out + second.out).all()
    assert both.failures["chip"] == first.failures["chip"] + second.failures["chip"]


def test_without_classes_nothing_fails() -> None:
    assert not drawn(range(5), classes=()).out.any()
