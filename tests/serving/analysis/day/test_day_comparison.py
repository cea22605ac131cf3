"""Policies beside each other: the oracle is not beaten, and a failed policy gets no ratio."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reporting.plain_text import table_lines
from serving.analysis.day.day_comparison import DayQuestion, LoadComparison, compare
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_tables import account_table, handover_table, headline_table
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_trace_file import sample_week
from tests.serving.analysis.day.days import HANDOVER, MONDAY, machine

pytestmark = pytest.mark.long


def compared(
    trace: DayTrace, *policies: str, peak: float = 0.7, machines: int = 1, **changes: Any
) -> LoadComparison:
    fields: dict[str, Any] = {
        "trace": trace,
        "begin_s": 86_400.0,
        "length_s": 86_400.0,
        "policies": policies,
        "peak_shares": (peak,),
        "terms": WalkTerms(),
    }
    on = replace(machine(12), machines=machines)
    (load,) = compare(DayQuestion(**(fields | changes)), on, HANDOVER)
    return load


@settings(max_examples=4)
@given(
    hours=st.lists(st.integers(1, 100), min_size=12, max_size=12),
    peak=st.sampled_from([0.5, 0.7, 0.9]),
)
@pytest.mark.slow
def test_no_policy_and_no_split_is_worth_more_than_the_oracle(
    hours: list[int], peak: float
) -> None:
    # Two days alike, in steps of two hours between 1 and 100 % of the highest.
    rates = np.repeat(np.array(hours * 2, dtype=np.float64), 2) * 1e5
    trace = DayTrace.hourly(rates, source="drawn", begins=MONDAY)
    load = compared(trace, "demand:headroom=0", "demand", "schedule:22:00-06:00@UTC", peak=peak)

    assert load.compares(load.oracle)
    assert load.compares(load.fixed)
    assert load.oracle_gap is not None
    assert load.oracle_gap < 0.002
    for result in load.everything:
        if load.compares(result):
            assert result.value <= load.oracle.value


def test_machines_share_the_demand_and_are_alike() -> None:
    one, eight = (
        compared(sample_week(), "demand", "schedule:22:00-06:00@UTC", machines=count)
        for count in (1, 8)
    )
    assert eight.peak_per_s == 8 * one.peak_per_s
    assert eight.oracle_gap == one.oracle_gap
    for each, alone in zip(eight.everything, one.everything, strict=True):
        assert each.policy == alone.policy
        assert each.value == pytest.approx(alone.value, rel=1e-12)
        assert each.training_tokens == pytest.approx(8 * alone.training_tokens, rel=1e-12)
        assert each.energy_mwh == pytest.approx(8 * alone.energy_mwh, rel=1e-12)
        assert each.requests == 8 * alone.requests
        assert each.totals.left == 8 * alone.totals.left


def test_a_flash_crowd_within_the_days_target_is_marked_by_its_worst_five_minutes() -> None:
    rates = np.full(2 * 288, 10.0)
    rates[288 + 100] = 28.0  # at its height four groups serve less than arrives
    knots_s = np.arange(150.0, 172_800.0, 300.0, dtype=np.float64)
    trace = DayTrace(
        source="a crowd", begins=MONDAY, length_s=172_800.0, knots_s=knots_s, rates_per_s=rates
    )
    load = compared(trace, "fixed:4")
    crowded = load.result("fixed:4")
    header, *rows = table_lines(headline_table(load, {}))

    assert crowded.keeps_target
    assert crowded.worst_5min_attainment < 0.5
    assert "worst 5 min" in header
    assert next(row for row in rows if row.startswith("fixed:4")).endswith("5 MIN")
    assert load.never.worst_5min_attainment > 0.99


def test_on_a_day_with_a_night_the_order_is_never_fixed_demand_oracle() -> None:
    load = compared(sample_week(), "demand")
    ordered = (load.never, load.fixed, load.result("demand"), load.oracle)
    assert all(each.keeps_target for each in ordered)
    tokens = [each.training_tokens for each in ordered]
    assert tokens == sorted(tokens)
    assert tokens[0] == 0
    assert [each.flops_per_mwh for each in ordered] == sorted(
        each.flops_per_mwh for each in ordered
    )


def test_a_policy_that_misses_the_target_is_marked_and_held_against_nothing() -> None:
    load = compared(sample_week(), "fixed:2", "demand")
    header, failed, kept, *_ = table_lines(headline_table(load, {}))

    assert load.result("fixed:2").slo_attainment < 0.99
    assert failed.split()[0] == "fixed:2"
    assert failed.split()[-4:] == ["-", "-", "-", "FAILED"]
    assert kept.split()[0] == "demand"
    demand = load.result("demand")
    against = [demand.flops_per_mwh / each.flops_per_mwh for each in (load.never, load.fixed)]
    assert [float(cell) for cell in kept.removesuffix("5 MIN").split()[-3:-1]] == pytest.approx(
        against, abs=0.006
    )
    assert f"x {load.fixed.policy}" in header
    for table in (account_table(load), handover_table(load, title="freed")):
        assert len(table.rows) == len(load.everything)


def test_a_split_that_is_asked_for_and_the_best_one_is_shown_once() -> None:
    best = compared(sample_week(), "demand").fixed.policy
    load = compared(sample_week(), best)
    assert [each.policy for each in load.everything].count(best) == 1


def test_beyond_the_machines_days_are_held_to_the_target_share_of_what_never_keeps() -> None:
    load = compared(sample_week(), "demand", peak=1.3)

    assert load.never.slo_attainment < 0.99
    assert load.kept_share == pytest.approx(0.99 * load.never.slo_attainment)
    assert load.compares(load.never)
    assert load.compares(load.result("demand"))
    assert load.result("demand").value <= load.oracle.value
    assert load.oracle_gap is not None
    assert load.oracle_gap < 0.01


def test_an_oracle_without_a_bound_says_so() -> None:
    """Hand-overs that last over several looks have too many states."""
    question = DayQuestion(
        trace=sample_week(),
        begin_s=86_400.0,
        length_s=10_800.0,
        policies=("never",),
        peak_shares=(0.7,),
        terms=WalkTerms(),
    )
    slow = replace(HANDOVER, drain_s=1_000.0, restore_s=2_000.0)
    (load,) = compare(question, machine(12), slow)

    assert load.oracle_bound is load.oracle_gap is None
    assert load.oracle.value == max(load.never.value, load.fixed.value)
    assert "no bound" in headline_table(load, {}).foot
