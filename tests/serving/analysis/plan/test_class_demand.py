"""Classes of traffic on the same replicas, each with lengths, a target and a priority."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from serving.analysis.plan.class_demand import (
    ClassesDemand,
    PlannedClass,
    class_data,
    levels_of_all,
    long_run,
    steady_target,
)
from serving.analysis.plan.plan import plan, slowed
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_options import OptionTerms
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_report import plan_data, plan_document
from serving.analysis.plan.size_check import Check
from tests.serving.analysis.plan.planned import CHECK, DEMAND, MODEL, SWEEP, question


def fixed(prompt: int, output: int) -> IndependentLengths:
    return IndependentLengths(
        prompt=Uniform(least=prompt, most=prompt), output=Uniform(least=output, most=output)
    )


CHAT = PlannedClass(
    name="chat",
    rate_per_s=60.0,
    lengths=fixed(300, 12),
    words="short ones",
    slo=Slo.parse("ttft=200ms,tpot=20ms@p90"),
)
BATCH = PlannedClass(
    name="batch",
    rate_per_s=20.0,
    lengths=fixed(1_500, 40),
    words="long ones",
    slo=Slo.parse("ttft=4s,tpot=80ms@p80"),
    priority=1,
)


def demand_of(*classes: PlannedClass) -> ClassesDemand:
    return ClassesDemand.of(classes, context_tokens=MODEL.max_context_tokens, seed=1)


BOTH = demand_of(CHAT, BATCH)


def asked(demand: ClassesDemand, *, policy: str = "fcfs", judged: int = 60) -> PlanQuestion:
    schedulers = replace(CHECK.schedulers, scheduling_policy=policy)
    return question(
        demand=demand,
        slo=demand.slo,
        check=replace(CHECK, judged=judged, schedulers=schedulers),
        search=SearchTerms(policies=("none",), tries=1, budget_s=120.0),
        pools=False,
    )


def checked(demand: ClassesDemand, *, policy: str = "fcfs", early_end: bool = False) -> Check:
    """One replica of one chip for all of it."""
    of = asked(demand, policy=policy, judged=200)
    (precision, candidate), *_ = (task for task in SWEEP.tasks() if task[1].partition.chips == 1)
    return check_size(
        SizeTask(
            sweep=of.sweep,
            precision=precision,
            candidate=candidate,
            demand=of.demand,
            slo=of.slo,
            terms=replace(of.check, early_end=early_end),
            replicas=1,
            lead_s=0.2,
            most_requests_per_s=1_000.0,
        )
    )


def test_a_class_is_judged_by_its_own_requests_alone() -> None:
    # An idle replica: every prompt of chat is computed before the limit, none of batch before 1 us.
    slow = replace(BATCH, rate_per_s=1.0, slo=Slo.parse("ttft=1us@p50"))
    check = checked(demand_of(replace(CHAT, rate_per_s=2.0), slow))
    terms = {term.label: term for term in check.terms}

    assert list(terms) == ["chat TTFT", "chat TPOT", "batch TTFT"]
    assert terms["chat TTFT"].share == 1.0
    assert terms["batch TTFT"].share == 0.0
    assert terms["chat TTFT"].requests + terms["batch TTFT"].requests == check.requests == 200
    assert terms["chat TTFT"].requests == pytest.approx(200 * 2 / 3, rel=0.2)
    assert not check.meets
    medians = {name: known[0] for name, known in check.percentiles_s.items()}
    assert set(medians) == {
        *("ttft", "tpot", "e2e", "chat ttft", "chat tpot", "chat e2e"),
        *("batch ttft", "batch tpot", "batch e2e"),
    }
    assert medians["chat ttft"] is not None
    assert medians["batch ttft"] is not None
    assert medians["batch ttft"].value > medians["chat ttft"].value


def test_a_priority_lets_a_class_pass_the_others_in_the_queue() -> None:
    heavy = demand_of(replace(CHAT, rate_per_s=40.0), replace(BATCH, rate_per_s=60.0))
    shares = {
        policy: [term.share for term in checked(heavy, policy=policy).terms]
        for policy in ("fcfs", "priority")
    }

    assert shares["priority"][0] > shares["fcfs"][0] + 0.2  # chat's TTFT
    assert BOTH.has_priorities
    assert not demand_of(CHAT).has_priorities


def test_a_run_that_is_broken_off_misses_what_the_whole_run_misses() -> None:
    hopeless = demand_of(replace(CHAT, rate_per_s=300.0), replace(BATCH, rate_per_s=300.0))

    assert not checked(hopeless, early_end=True).meets
    assert not checked(hopeless).meets


def test_the_steady_state_has_the_class_with_the_least_time_for_a_prompt() -> None:
    # 300 tokens in 200 ms are 1.5 a ms; 1,500 in 4 s are less than a half.
    slo, of_ttft = steady_target(BOTH, BOTH.slo)
    assert (slo.ttft_s, slo.tpot_s) == (0.2, 0.02)
    assert (of_ttft == (BOTH.peak_of_class == 0)).all()
    tight = demand_of(CHAT, replace(BATCH, slo=Slo.parse("ttft=500ms@p80")))
    assert OptionTerms.of(SWEEP, tight, tight.slo, seats=64).long_prompt == 1_500
    without = demand_of(replace(CHAT, slo=Slo.parse("tpot=20ms")))
    assert steady_target(without, without.slo)[0].ttft_s is None
    terms = OptionTerms.of(SWEEP, BOTH, BOTH.slo, seats=64)
    assert (terms.long_prompt, terms.longest) == (300, 1_540)


def test_what_one_traffic_keeps_is_its_own_target() -> None:
    assert levels_of_all(DEMAND, CHAT.slo) == CHAT.slo.bounds
    ttft, tpot = levels_of_all(BOTH, BOTH.slo)
    # Three quarters of the requests keep 90 %, one quarter 80 %, all of them by the loosest limit.
    assert (ttft.limit, ttft.percentile) == (4_000.0, pytest.approx(87.5))
    assert (tpot.limit, tpot.percentile) == (80.0, pytest.approx(87.5))
    one = demand_of(CHAT, replace(BATCH, slo=Slo.parse("tpot=80ms")))
    assert [bound.name for bound in levels_of_all(one, one.slo)] == ["tpot"]


@pytest.mark.long
@given(
    rates=st.lists(st.floats(0.5, 50.0), min_size=1, max_size=4),
    judged=st.integers(20, 200),
    seed=st.integers(0, 50),
)
def test_a_share_has_each_class_with_its_lengths(
    rates: list[float], judged: int, seed: int
) -> None:
    classes = [
        replace(CHAT, name=f"c{n}", rate_per_s=rate, lengths=fixed(100 + n, 5 + n), priority=n)
        for n, rate in enumerate(rates)
    ]
    (share,) = demand_of(*classes).shares(2, judged=judged, lead_s=0.1, seed=seed)

    assert share.of_class is not None
    assert int(share.judged.sum()) == judged
    assert (share.traffic.prompt_tokens == 100 + share.of_class).all()
    assert (share.traffic.output_tokens == 5 + share.of_class).all()
    assert share.traffic.priority is not None
    assert (share.traffic.priority == share.of_class).all()


def test_a_long_run_lasts_many_times_the_longest_wait() -> None:
    # 4 s are batch's limit of TTFT: of 40 requests a second and replica 20 times 4 s are judged.
    assert long_run(BOTH, BOTH.slo, 40.0) == 3_200
    assert long_run(DEMAND, CHAT.slo, 40.0) == 1


def test_classes_come_by_their_rates() -> None:
    of_class = BOTH.peak_of_class

    assert float((of_class == 0).mean()) == pytest.approx(0.75, abs=0.01)
    assert BOTH.peak_rate_per_s == 80.0
    faster = BOTH.sped_up(2.0)
    assert faster.peak_rate_per_s == 160.0
    assert np.array_equal(faster.peak.prompt_tokens, BOTH.peak.prompt_tokens)
    assert [each["requests_per_s"] for each in class_data(faster)] == [120.0, 40.0]


def test_slower_steps_tighten_the_bounds_of_each_class() -> None:
    slower = slowed(asked(BOTH), 2.0).slo

    assert [bound.limit for bound in slower.bounds] == [100.0, 10.0, 2_000.0, 40.0]
    assert str(slower.bounds[0]) == "chat TTFT p90 <= 100 ms"


def test_a_class_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^chat: rate=0\.0: expected above 0"):
        replace(CHAT, rate_per_s=0.0)
    with pytest.raises(ConfigError, match=r"^batch: lengths=long ones: expected some within"):
        ClassesDemand.of([CHAT, BATCH], context_tokens=1_000, seed=0)


@pytest.mark.long
def test_a_plan_keeps_the_targets_of_both_classes() -> None:
    found = plan(replace(asked(BOTH), margins=False))

    assert found.choice.check.surely_meets
    labels = [term.label for term in found.choice.check.terms]
    assert labels == ["chat TTFT", "chat TPOT", "batch TTFT", "batch TPOT"]
    lines = [row for section in plan_document(found).sections for row in section.rows]
    assert any("batch TTFT p80 " in row and " of its " in row for row in lines)
    data = plan_data(found)
    assert [each["name"] for each in data["question"]["classes"]] == ["chat", "batch"]
    terms = data["checks"]["plan"]["terms"]
    assert [each["traffic_class"] for each in terms] == ["chat", "chat", "batch", "batch"]
