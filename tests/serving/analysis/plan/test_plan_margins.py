"""A plan's margins: the highest rate, what the traffic costs of it, and lost chips."""

import time
from dataclasses import replace
from typing import Any

import pytest

from loadgen.measures.slo import Slo
from reporting.plain_text import document_lines
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_margins import FINE, RateKept, highest_rates
from serving.analysis.plan.plan_page import PlanPage
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_reason import missed_because
from serving.analysis.plan.plan_report import plan_data, plan_document
from serving.analysis.plan.size_check import TermCheck
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import CHECK, DEMAND, SWEEP, question

pytestmark = pytest.mark.long
FEW = replace(CHECK, judged=60)


@pytest.fixture(scope="module")
def found() -> Plan:
    """Two replicas of two ranks, or a little more, of one chip each."""
    two_chips = replace(SWEEP, asked=PartitionFilter(chips=(2,), tp=(1,), lnc=(2,)))
    busy = replace(DEMAND, rate_per_s=400.0)
    return plan(question(sweep=two_chips, check=FEW, demand=busy, pools=False))


def of_setting(found: Plan) -> SizeTask:
    race = Race(found.question, THIS_PROCESS, lambda _: None)
    return race.task(found.choice.setting, judged=240)


def test_the_highest_rate_keeps_the_target_and_a_little_more_does_not(found: Plan) -> None:
    task = of_setting(found)
    (rate,) = highest_rates([task], THIS_PROCESS)
    factor = rate.requests_per_s / task.demand.peak_rate_per_s

    assert factor >= 1
    assert check_size(replace(task, demand=task.demand.multiplied(factor, seed=1))).meets
    more = task.demand.multiplied(1.001 * FINE * factor, seed=1)
    assert rate.missed in {"ttft", "tpot"}
    assert not check_size(replace(task, demand=more)).meets
    assert found.margins is not None
    assert found.margins.most_requests_per_s == rate.requests_per_s


def test_no_rate_keeps_a_target_out_of_reach(found: Plan) -> None:
    never = replace(of_setting(found), slo=Slo.parse("ttft=1ms"))

    assert highest_rates([never], THIS_PROCESS) == [
        RateKept(traffic="", requests_per_s=0.0, missed="ttft")
    ]


def test_a_rate_that_the_steady_state_ends_is_found(found: Plan) -> None:
    task = of_setting(found)
    easy = replace(task, slo=Slo.parse("ttft=1h,tpot=1h"))
    (rate,) = highest_rates([easy], THIS_PROCESS, ends_s=time.monotonic() + 30)

    assert rate.is_found
    assert rate.missed == ""
    assert rate.requests_per_s == pytest.approx(task.replicas * task.most_requests_per_s)


def test_without_time_the_rates_say_that_they_are_not_found(found: Plan) -> None:
    (rate,) = highest_rates([of_setting(found)], THIS_PROCESS, ends_s=time.monotonic())

    assert rate == RateKept(traffic="", requests_per_s=0.0, is_found=False)


def test_even_times_and_equal_lengths_take_hardly_less_than_bursts(found: Plan) -> None:
    assert found.margins is not None
    steady, even, lengths, asked = (each.requests_per_s for each in found.margins.rates)

    assert steady > 0
    assert even > 0.8 * asked  # bursts leave more steps without a prompt
    assert lengths > 0.9 * asked


def test_an_engine_goes_on_without_a_chip_and_nothing_without_the_machine(found: Plan) -> None:
    assert found.margins is not None
    chip, tray, machine = found.margins.losses

    assert chip.lost_chips == 1
    assert chip.replicas_left == found.fleet.replicas
    assert chip.check is not None
    assert chip.check.requests == FEW.judged  # 60 arrive in less than 20 s
    plain = check_size(replace(of_setting(found), terms=chip_terms(found)))
    assert worst(chip.check.terms) <= worst(plain.terms)
    assert tray.lost_chips == 0
    assert tray.replicas_left == found.fleet.replicas - 2
    assert machine.replicas_left == 0
    assert machine.check is None


def chip_terms(found: Plan) -> object:
    return replace(of_setting(found).terms, judged=FEW.judged, early_end=False)


def worst(terms: tuple[TermCheck, ...]) -> float:
    return min(term.share for term in terms)


def test_margins_stand_in_the_report_and_the_data(found: Plan) -> None:
    assert found.margins is not None
    text = "\n".join(document_lines(plan_document(found)))
    data = plan_data(found)["margins"]

    assert "headroom: " in text
    assert "a whole machine lost: nothing is left that serves" in text
    kept = [each["requests_per_s"] for each in data["requests_per_s_kept"]]
    assert kept == [each.requests_per_s for each in found.margins.rates]
    assert [each["replicas_left"] for each in data["losses"]] == [
        each.replicas_left for each in found.margins.losses
    ]


def test_a_missed_limit_has_its_reason_by_the_idle_machine_and_the_mean_step(found: Plan) -> None:
    setting, check = found.choice.setting, found.choice.check
    ttft, tpot = check.terms
    alone_s = setting.option.prompt_ns / 1e9

    def reason(*terms: TermCheck) -> str:
        given = replace(check, terms=terms)
        return "; ".join(missed_because(given, setting, found.question.demand.peak_rate_per_s))

    assert reason(ttft, tpot) == ""
    late = replace(ttft, share=0.5)
    assert "queue" not in reason(late)
    assert "waiting for others" in reason(replace(late, limit_s=2 * alone_s))
    assert "more chips to a prompt" in reason(replace(late, limit_s=alone_s / 2))
    slow = replace(tpot, share=0.5)
    assert "steps with prompts in them" in reason(replace(slow, limit_s=10.0))
    assert "more chips to one" in reason(replace(slow, limit_s=1e-4))
    overloaded = replace(check, load_share=1.25)
    assert [*missed_because(overloaded, setting, 1.0)] == [
        "it gets 125 % of what its full batches can serve: more chips"
    ]


def test_a_page_has_the_report_its_pictures_and_the_command(found: Plan) -> None:
    page = PlanPage(plan=found, report=plan_document(found), command="ultraserve plan --rate 400")

    assert page.document().command == "ultraserve plan --rate 400"
    assert page.document().sections == plan_document(found).sections
    sizes, rates, hours = (rows_of(each.chart.to_dict()) for each in page.charts())
    known = [
        each
        for each in found.choice.tried
        if all(term.reached_s is not None for term in each.terms)
    ]
    assert sum("chips" in each for each in sizes) == len(known)
    assert found.margins is not None
    shown = {each["traffic"]: each["rate"] for each in rates if "traffic" in each}
    assert shown == {each.traffic: each.requests_per_s for each in found.margins.rates}
    assert sum(each["chips"] for each in hours) == 24 * found.fleet.chips


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Of all layers."""
    return [row for rows in chart["datasets"].values() for row in rows]
