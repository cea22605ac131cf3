"""Growth of a plan's traffic: months, machines, orders, and what is simulated of them."""

import time
from dataclasses import replace
from itertools import pairwise
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from reporting.plain_text import document_lines
from serving.analysis.plan.growth import (
    LEAD_TIME_S,
    WEEK_S,
    Growth,
    parse_growth,
    parse_lead_time_s,
)
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_demand import TraceDemand
from serving.analysis.plan.plan_difference import PlanAnswer, what_if_data, with_what_if
from serving.analysis.plan.plan_growth import PlanGrowth, growth_of, replica_rate_per_s
from serving.analysis.plan.plan_margins import FINE, Margins, RateKept
from serving.analysis.plan.plan_outlook import OutlookTerms, PlanOutlook, outlook_charts, outlook_of
from serving.analysis.plan.plan_report import plan_document
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import CHECK, DEMAND, SWEEP, question

FEW = replace(CHECK, judged=60)


@pytest.fixture(scope="module")
def found() -> Plan:
    """One replica or a few, of one chip each, on a machine of 144."""
    one_chip = replace(SWEEP, asked=PartitionFilter(chips=(1,), lnc=(2,)))
    calm = replace(DEMAND, rate_per_s=40.0)
    return plan(question(sweep=one_chip, check=FEW, demand=calm, pools=False, margins=False))


def taking(found: Plan, requests_per_s: float) -> Plan:
    """The plan whose replicas together take so much, by its headroom."""
    rate = RateKept(traffic="asked for", requests_per_s=requests_per_s, missed="tpot")
    return replace(found, margins=Margins(rates=(rate,), losses=()))


def unsimulated(found: Plan, growth: Growth) -> PlanGrowth:
    return growth_of(found, growth, workers=THIS_PROCESS, ends_s=time.monotonic() - 1)


@pytest.mark.parametrize(
    ("text", "monthly"),
    [
        ("8%/month", 0.08),
        ("0.5%/month", 0.005),
        ("33.1%/quarter", 0.1),
        ("300%/year", 4 ** (1 / 12) - 1),
    ],
)
def test_growth_is_typed_with_its_period(text: str, monthly: float) -> None:
    assert parse_growth(text) == pytest.approx(monthly)


def test_a_lead_time_is_weeks_or_days() -> None:
    assert parse_lead_time_s("12w") == LEAD_TIME_S == parse_lead_time_s("84d")


@pytest.mark.parametrize("text", ["8", "8%", "-8%/month", "8%/week", "lots", ""])
def test_other_words_for_growth_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"growth=.*such as 8%/month"):
        parse_growth(text)


@pytest.mark.parametrize("text", ["12", "3mo", "-1w", "w"])
def test_other_words_for_a_lead_time_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"lead-time=.*12w or 90d"):
        parse_lead_time_s(text)


@pytest.mark.parametrize(
    ("monthly", "months", "field"), [(0, 9, "growth"), (1, 0, "months"), (1, 121, "months")]
)
def test_no_growth_and_no_months_are_refused(monthly: float, months: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Growth(monthly=monthly, months=months)


@pytest.mark.long
def test_a_doubling_every_month_by_hand(found: Plan) -> None:
    replicas = found.fleet.replicas
    grown = unsimulated(taking(found, 50.0), Growth(monthly=1.0, months=9, lead_time_s=0.0))
    each = 50.0 / replicas

    assert grown.replica_requests_per_s == each
    assert [size.requests_per_s for size in grown.months[:3]] == [40.0, 80.0, 160.0]
    assert [size.replicas for size in grown.months[:3]] == [
        replicas,
        -(-80 * replicas // 50),
        -(-160 * replicas // 50),
    ]
    assert grown.in_service_until == pytest.approx(log(50 / 40, 2))
    machine = 144 * each
    assert grown.machines_until == pytest.approx(log(machine / 40, 2))
    assert grown.orders[0].needed_month == grown.machines_until == grown.orders[0].order_month
    assert grown.orders[0].first == 2
    assert grown.why_not == "the time was over (--budget)"


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    monthly=st.floats(0.01, 3.0),
    months=st.integers(1, 40),
    weeks=st.integers(0, 60),
    headroom=st.floats(1.0, 4.0),
)
def test_machines_are_there_when_they_are_needed_and_ordered_a_lead_time_before(
    found: Plan, monthly: float, months: int, weeks: int, headroom: float
) -> None:
    growth = Growth(monthly=monthly, months=months, lead_time_s=weeks * WEEK_S)
    planned = taking(found, 40.0 * headroom)
    grown = unsimulated(planned, growth)

    for size in grown.months:
        # The plan's own size holds at month 0, whatever rounding says.
        room = size.replicas * grown.replica_requests_per_s
        assert room >= size.requests_per_s * (1 - 1e-9)
        assert size.machines == planned.machines_for(size.replicas)
    bought = planned.machines + sum(order.last - order.first + 1 for order in grown.orders)
    assert bought == grown.months[-1].machines
    for order, (before, now) in zip(
        grown.orders,
        [pair for pair in pairwise(grown.months) if pair[1].machines > pair[0].machines],
        strict=True,
    ):
        assert before.month - 1e-6 <= order.needed_month <= now.month
        assert order.needed_month - order.order_month == pytest.approx(
            weeks * WEEK_S / (30.4375 * 86_400)
        )
        assert order.is_late == (order.order_month < 0)


@pytest.mark.long
def test_without_margins_a_replica_takes_its_part_of_the_traffic(found: Plan) -> None:
    assert replica_rate_per_s(found) == 40.0 / found.fleet.replicas
    assert replica_rate_per_s(taking(found, 10.0)) == 40.0 / found.fleet.replicas


@pytest.mark.long
def test_the_last_month_and_additions_are_simulated_and_optimism_is_undone(found: Plan) -> None:
    bold = taking(found, 400.0)  # far more than it can
    grown = growth_of(bold, Growth(monthly=1.0, months=9), workers=THIS_PROCESS)

    assert not grown.why_not
    least = 40.0 / found.fleet.replicas
    assert least <= grown.replica_requests_per_s < 400.0 / found.fleet.replicas / FINE
    added = [now for before, now in pairwise(grown.months) if now.machines > before.machines]
    assert added
    for size in added:
        assert size.check is not None
        assert size.check.replicas == size.replicas
        assert size.check.surely_meets or grown.replica_requests_per_s == pytest.approx(least)


def of_a_trace(found: Plan) -> Plan:
    trace = TraceDemand(traffic=found.question.demand.peak, window_s=60.0, source="a trace")
    return replace(found, question=replace(found.question, demand=trace))


@pytest.mark.long
def test_a_trace_a_million_times_as_long_is_simulated_by_one_of_a_few_replicas(found: Plan) -> None:
    thousandfold = Growth(monthly=999.0, months=2)
    grown = growth_of(of_a_trace(found), thousandfold, workers=THIS_PROCESS)

    assert not grown.why_not
    last = grown.months[-1]
    assert last.check is not None
    assert last.check.replicas == last.replicas > 10_000


@pytest.mark.long
def test_a_trace_that_is_too_long_is_not_simulated_and_that_is_said(
    found: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("scale", 9.0, "at most 10 million requests")

    monkeypatch.setattr(TraceDemand, "multiplied", refuse)
    grown = growth_of(of_a_trace(found), Growth(monthly=1.0, months=9), workers=THIS_PROCESS)

    assert "at most 10 million requests" in grown.why_not
    assert all(size.check is None for size in grown.months)


@pytest.mark.long
def test_growth_stands_in_the_report_the_data_and_the_page(found: Plan) -> None:
    planned = taking(found, 50.0)
    grown = unsimulated(planned, Growth(monthly=0.5, months=20, lead_time_s=400 * WEEK_S))
    answer = PlanAnswer(
        plan=planned, difference=None, sensitivity=None, outlook=PlanOutlook(growth=grown)
    )
    text = "\n".join(document_lines(with_what_if(plan_document(planned), answer)))
    data = what_if_data(answer)["growth"]

    assert "if the traffic grows by 50 % a month:" in text
    assert "ORDER NOW: " in text
    assert "not all of them were: the time was over (--budget)" in text
    assert [each["ultraservers"] for each in data["by_month"]] == [
        each.machines for each in grown.months
    ]
    assert data["lead_time_is_assumed"] is True
    (chart,) = outlook_charts(planned, answer.outlook)
    assert chart.title == "machines, if the traffic grows by 50 % a month"
    shown = [
        row["machines"]
        for rows in chart.chart.to_dict()["datasets"].values()
        for row in rows
        if row.get("what") == "needed"
    ]
    assert shown == [
        planned.machines,
        *(each.last for each in grown.orders),
        grown.months[-1].machines,
    ]


@pytest.mark.long
def test_an_interrupt_leaves_the_plan_without_its_outlook(
    found: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("serving.analysis.plan.plan_outlook.growth_of", interrupted)
    ahead = outlook_of(
        found,
        OutlookTerms(growth=Growth(monthly=0.1)),
        workers=THIS_PROCESS,
        progress=lambda _: None,
        ends_s=time.monotonic() + 60,
    )

    assert ahead == PlanOutlook()


def test_only_what_is_asked_takes_a_part_of_the_budget() -> None:
    asked = question()

    assert OutlookTerms().leaves_time(asked) is asked
    some = replace(asked, search=replace(asked.search, budget_s=60.0))
    less = OutlookTerms(growth=Growth(monthly=0.1)).leaves_time(some)
    assert less.search.budget_s == 45.0
