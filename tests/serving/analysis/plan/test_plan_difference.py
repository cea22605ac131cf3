"""What changed figures do to a plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from emulator.power.token_cost import Prices
from emulator.specs.assumptions import with_assumptions
from loadgen.measures.slo import Slo
from reporting.document import Lines
from serving.analysis.plan.plan_difference import (
    PlanAnswer,
    difference_section,
    plan_answer,
    what_if_data,
    with_what_if,
)
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_report import plan_document
from tests.serving.analysis.plan.planned import CHECK, SWEEP, SYSTEM, question

pytestmark = pytest.mark.long

CHANGES = ("bf16_flops=4x", "hbm_bandwidth=2x", "pue=1.2")


def changed(**changes: object) -> PlanQuestion:
    system = with_assumptions(SYSTEM, CHANGES)
    return question(
        sweep=replace(SWEEP, system=system),
        search=SearchTerms(policies=("balanced:64:256:1024",), tries=1, budget_s=300.0),
        check=replace(CHECK, judged=30),
        pools=False,
        prices=Prices(chip_hour_dollars=2.0),
        **changes,
    )


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return plan_answer(changed(), catalog=SYSTEM)


@pytest.mark.slow
def test_the_catalogs_machine_is_planned_beside_it(answer: PlanAnswer) -> None:
    difference = answer.difference
    assert difference is not None
    before, after = difference.before, answer.plan
    assert before is not None
    assert difference.changes == (
        *("pue=1.2", "hbm_bytes_per_s=2x", "dma_bytes_per_s=2x"),
        "tensor_bf16_flops_per_s=4x",
    )
    assert before.question.sweep.system is SYSTEM
    assert before.fleet.chips_in_service > after.fleet.chips_in_service
    assert {each.question.search.budget_s for each in (before, after)} == {150.0}
    assert before.question.check.seed == after.question.check.seed


def test_the_report_says_before_and_after(answer: PlanAnswer) -> None:
    document = with_what_if(plan_document(answer.plan), answer)
    titles = [section.title for section in document.sections]
    change = next(each for each in document.sections if each.title.startswith("what the change"))
    assert isinstance(change, Lines)
    before = answer.difference and answer.difference.before
    assert before is not None

    assert titles.index(change.title) == len(titles) - 3
    assert titles[-1] == "assumed:"
    was, is_now = before.fleet.chips_in_service, answer.plan.fleet.chips_in_service
    assert change.rows[0].startswith(f"chips in service: {was} -> {is_now} (-")
    assert change.rows[2].startswith("MW drawn at the peak: ")
    assert change.rows[3].startswith("$ per million tokens over the day, all machines: ")
    assert change.rows[-1] == "both planned by the same seeds, each in half of the budget"


def test_the_data_has_both(answer: PlanAnswer) -> None:
    data = what_if_data(answer)

    assert data["change"]["after"]["chips_in_service"] == answer.plan.fleet.chips_in_service
    assert data["change"]["before"]["peak_drawn_watts"] > 0
    assert data["change"]["why_not"] is None
    assert data["sensitivity"]["figures"]


@pytest.mark.slow
def test_without_changes_there_is_no_difference() -> None:
    answer = plan_answer(replace(changed(), sweep=SWEEP))

    assert answer.difference is None
    assert answer.plan.question.search.budget_s == 300.0
    assert what_if_data(answer)["change"] is None


@pytest.mark.slow
def test_what_the_catalogs_machine_cannot_keep_is_said() -> None:
    slow = with_assumptions(SYSTEM, ["hbm_bandwidth=0.1x"])

    answer = plan_answer(changed(slo=Slo.parse("ttft=300ms,tpot=10ms@p95")), catalog=slow)

    assert answer.difference is not None
    assert answer.difference.before is None
    section = difference_section(answer.plan, answer.difference)
    assert isinstance(section, Lines)
    assert section.rows[0].startswith("with the catalog's figures nothing was planned: slo=")
    assert answer.sensitivity is not None


@pytest.mark.parametrize("is_interrupted", [lambda: True])
def test_an_interrupt_leaves_out_what_would_come_after_it(
    is_interrupted: Callable[[], bool],
) -> None:
    answer = plan_answer(changed(), catalog=SYSTEM, is_interrupted=is_interrupted)

    assert answer.difference is not None
    assert answer.difference.why_not == "interrupted"
    assert answer.sensitivity is None
    assert answer.plan.fleet.chips_in_service > 0
