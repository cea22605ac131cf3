"""A whole plan: found, checked again, priced, and told."""

import re
from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.power.token_cost import Prices
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.models import model_by_name
from loadgen.measures.slo import Slo
from reporting.plain_text import document_lines
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_question import SearchTerms
from serving.analysis.plan.plan_report import kind_line, plan_data, plan_document
from serving.analysis.plan.plan_task import FRESH_RUNS, FRESH_TIMES
from serving.analysis.plan.size_check import Check
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import SimulationWorkers
from tests.serving.analysis.plan.planned import CHECK, DEMAND, QUESTION, SWEEP, question
from tests.serving.analysis.steady_state.small_machines import trays

FEW = replace(CHECK, judged=60)
HEADS = (AttentionSplit.HEADS,)
ONE_CHIP = replace(SWEEP, asked=PartitionFilter(chips=(1,), lnc=(2,)))


@pytest.fixture(scope="module")
def found() -> Plan:
    busy = replace(DEMAND, rate_per_s=900.0)
    prices = Prices(system_hour_dollars=500.0, kwh_dollars=0.08)
    return plan(question(check=FEW, demand=busy, prices=prices, pools=False))


def again(of: Plan, replicas: int) -> bool:
    """The same setting with so many replicas, simulated anew and to its end."""
    setting, check = of.choice.setting, of.question.check
    schedulers = replace(check.schedulers, prefill_policy=setting.policy)
    task = SizeTask(
        sweep=of.question.sweep,
        precision=setting.option.point.precision,
        candidate=setting.option.candidate,
        demand=of.question.demand,
        slo=of.question.slo,
        terms=replace(check, schedulers=schedulers, early_end=False, runs=FRESH_RUNS),
        replicas=replicas,
        lead_s=16.0,
        most_requests_per_s=setting.option.most_requests_per_s,
    )
    return check_size(task).meets


@pytest.mark.long
def test_the_plan_meets_the_target_and_much_less_of_it_does_not(found: Plan) -> None:
    assert found.fleet.replicas > 1
    assert again(found, found.fleet.replicas)
    assert not again(found, found.fleet.replicas // 2)

    assert found.choice.check.surely_meets
    assert found.choice.is_whole
    assert found.choice.smaller is not None
    assert not found.choice.smaller.surely_meets
    assert found.choice.smaller.chips < found.choice.check.chips
    assert all(term.reached_s is not None for term in found.choice.smaller.terms)


@pytest.mark.long
def test_nothing_that_was_tried_surely_meets_the_target_with_fewer_chips(found: Plan) -> None:
    chips = found.choice.check.chips
    judged = FRESH_RUNS * FRESH_TIMES * found.question.check.judged

    assert {check.candidate.partition.chips for check in found.choice.tried} == {1, 2}
    assert {check.prefill_policy for check in found.choice.tried} == {*QUESTION.search.policies}
    sure = [each for each in found.choice.tried if each.surely_meets and each.requests >= judged]
    assert min(check.chips for check in sure) == chips
    assert all(chips <= each.chips for each in found.choice.frontier)
    assert found.choice.check not in found.choice.frontier


@pytest.mark.long
def test_without_time_for_more_the_best_so_far_is_the_plan() -> None:
    def interrupt(words: str) -> None:
        if "keep the target" in words:
            raise KeyboardInterrupt

    found = plan(question(check=FEW), progress=interrupt)

    assert not found.choice.is_whole
    assert found.choice.check.surely_meets
    assert found.range is None
    text = "\n".join(document_lines(plan_document(found)))
    assert "the search was cut short" in text


@pytest.mark.slow
@pytest.mark.process
def test_the_same_question_has_the_same_answer_with_more_processes(found: Plan) -> None:
    with SimulationWorkers(2) as workers:
        with_two = plan(found.question, workers=workers)

    assert with_two.choice.tried == found.choice.tried
    assert with_two.choice.smaller == found.choice.smaller
    assert with_two.bill == found.bill


@pytest.mark.long
def test_machines_are_as_few_as_hold_the_replicas() -> None:
    two_chips = trays(1, chips_per_tray=2)
    found = plan(
        question(
            sweep=replace(ONE_CHIP, system=two_chips),
            slo=Slo.parse("ttft=400ms@p90"),
            demand=replace(DEMAND, rate_per_s=90.0),
            check=replace(CHECK, judged=40),
            search=SearchTerms(policies=("balanced:64:256:1024",), tries=1),
        )
    )

    assert found.replicas_per_machine == 2
    assert found.fleet.replicas == 3
    assert found.machines == 2
    assert found.spare_replica_fits
    assert found.machines_with_spare_replica == 2


@pytest.mark.long
def test_one_machine_more_for_the_loss_of_one(found: Plan) -> None:
    assert found.machines == 1
    assert found.machines_with_spare == 2
    assert found.spare_replica_fits
    assert found.machines_with_spare_replica == 1

    full = replace(found, fleet=replace(found.fleet, replicas=found.replicas_per_machine))
    assert not full.spare_replica_fits
    assert full.machines_with_spare_replica == 2


@pytest.mark.long
def test_below_one_chip_there_is_nothing() -> None:
    few = replace(DEMAND, rate_per_s=1.0)
    found = plan(question(sweep=ONE_CHIP, demand=few, check=replace(CHECK, judged=10)))

    assert found.choice.check.chips == 1
    assert found.choice.smaller is None
    assert "the plan is one chip" in found.choice.smaller_words


@pytest.mark.long
def test_where_fewer_chips_cannot_hold_the_model_the_plan_says_so() -> None:
    deepseek = replace(
        SWEEP,
        model=model_by_name("deepseek-v3"),
        asked=PartitionFilter(chips=(6,), tp=(2,), ep=(6,), lnc=(1,)),
    )
    few = replace(DEMAND, rate_per_s=0.5)
    loose = Slo.parse("ttft=5s,tpot=1s@p50")
    found = plan(question(sweep=deepseek, demand=few, slo=loose, check=replace(CHECK, judged=5)))

    assert found.choice.check.chips == 6
    assert found.choice.smaller is None
    assert (
        "no partition of up to 5 chips, of those asked for, both holds the model"
        in found.choice.smaller_words
    )
    assert "626.9 of the" in found.choice.smaller_words


@pytest.mark.slow
def test_a_stricter_target_never_needs_fewer_chips() -> None:
    chips = [
        plan(
            question(
                sweep=ONE_CHIP,
                slo=Slo.parse(f"ttft={limit}ms@p90"),
                check=replace(CHECK, judged=40),
                search=SearchTerms(policies=("balanced:64:256:1024",), tries=1),
            )
        ).choice.check.chips
        for limit in (400, 200, 120)
    ]

    assert chips == sorted(chips)
    assert chips[0] < chips[-1]


def test_a_target_out_of_reach_names_what_is_in_reach() -> None:
    with pytest.raises(ConfigError, match="at best TPOT") as refusal:
        plan(question(slo=Slo.parse("tpot=1us")))

    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_pools_win_where_prompts_hold_up_decodes() -> None:
    asked = question(
        sweep=replace(ONE_CHIP, asked=replace(ONE_CHIP.asked, attention_split=HEADS)),
        demand=replace(DEMAND, rate_per_s=400.0),
        slo=Slo.parse("ttft=300ms,tpot=8ms@p90"),
        check=replace(CHECK, judged=40),
        search=SearchTerms(policies=("balanced:64:256:1024",), tries=1),
    )
    with_pools, without = plan(asked), plan(replace(asked, pools=False))
    check = with_pools.choice.check

    assert check.prefill is not None
    assert check.chips < without.choice.check.chips
    assert check.replica_chips == sum(
        each.replicas * each.partition.chips for each in (check.prefill, check.candidate)
    )
    assert with_pools.fleet.chips_in_service == check.chips
    assert without.choice.check.prefill is None
    text = "\n".join(document_lines(plan_document(with_pools)))
    assert " for prompts + " in text
    data = plan_data(with_pools)["plan"]["pools"]
    assert data["prefill"]["engines"] == check.prefill.replicas
    assert data["decode"]["engines"] == check.candidate.replicas


@pytest.mark.long
def test_the_report_tells_size_checks_money_and_assumptions(found: Plan) -> None:
    assert found.choice.smaller is not None
    read = replace(found, question=replace(found.question, assumptions=("power=rack",)))
    text = "\n".join(document_lines(plan_document(read)))

    assert "  of the machine: power=rack" in text
    assert f"plan:  1 UltraServer (trn3-nl72x2), {found.fleet.replicas} replicas" in text
    assert f"the nearest, {found.choice.smaller.chips} chips" in text
    assert "N+1:   2 UltraServers (trn3-nl72x2) (0.3267 MW provisioned)" in text
    assert "night: " in text
    assert "MW drawn at the peak" in text
    assert found.bill.day_cost is not None
    assert f"${found.bill.day_cost.dollars_per_hour:,.2f} an hour" in text
    assert "assumed:" in text
    assert "calibration roofline, the roofline alone" in text
    assert "chips keep to their own power budget" in text
    assert "line; chips that are not in" in text


@pytest.mark.long
def test_a_plan_says_why_prefill_and_decode_are_together_and_not_apart(found: Plan) -> None:
    """Golden plans have the other way round, and what misses; `found` tried no pools."""
    asked = replace(found, question=replace(found.question, pools=True))
    assert found.choice.smaller is not None
    other, missing = found.choice.check, found.choice.smaller
    size = r"would be [\d,]+ chips \(.*\)"

    def kind(check: Check | None, *misses: str) -> str:
        choice = replace(found.choice, other_kind=check, other_misses=misses)
        return kind_line(replace(asked, choice=choice))

    together = "kind:  prefill and decode together; "
    assert kind(None) == f"{together}of prefill and decode apart none was simulated"
    assert kind_line(found) == f"{together}of prefill and decode apart none was asked for"
    kept = rf"{together}prefill and decode apart {size}, which keep the target too: TTFT .*"
    assert re.fullmatch(kept, kind(other))
    missed = rf"{together}prefill and decode apart {size} at best .* miss the target: .*the reason"
    late = replace(missing, terms=tuple(replace(each, share=0.5) for each in missing.terms))
    assert re.fullmatch(missed, kind(late, "the reason"))
    assert plan_data(found)["checks"]["other_kind"] is None


def test_the_data_has_both_checks_and_the_day(found: Plan) -> None:
    data = plan_data(found)

    assert data["checks"]["plan"]["surely_meets"] is True
    assert data["checks"]["next_smaller"]["surely_meets"] is False
    assert len(data["night"]["hours"]) == 24
    assert data["plan"]["chips_in_service"] == found.choice.check.chips
    assert data["question"]["slo"][0] == {"name": "ttft", "limit_s": 0.3, "percentile": 95.0}
    assert len(data["assumptions"]) >= 7
    assert QUESTION.sweep.model.name == data["question"]["model"]
