"""One fleet for several models, against sums made by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower
from emulator.power.token_cost import Prices
from emulator.specs.models import model_by_name
from loadgen.measures.slo import Slo
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.analysis.plan.model_mix import MixedModel, ModelMix, ModelShares, plan_mix
from serving.analysis.plan.plan_demand import TrafficPart
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from tests.serving.analysis.plan.planned import CHECK, DEMAND, SWEEP, SYSTEM, question

ROOM = SYSTEM.chips.count


def small(model: str, rate_per_s: float) -> PlanQuestion:
    return question(
        sweep=replace(SWEEP, model=model_by_name(model)),
        demand=replace(DEMAND, rate_per_s=rate_per_s),
        search=SearchTerms(policies=("none",), tries=1, budget_s=300.0),
        check=replace(CHECK, judged=30),
        prices=Prices(system_hour_dollars=100.0, kwh_dollars=0.1),
        pools=False,
        margins=False,
    )


@pytest.fixture(scope="module")
def mix() -> ModelMix:
    return plan_mix([(0.75, small("qwen3-30b-a3b", 30.0)), (0.25, small("gpt-oss-20b", 10.0))])


def sized(mix: ModelMix, *sizes: tuple[int, int]) -> ModelMix:
    """The mix with so many replicas of so many chips of each model."""
    models = []
    for each, (count, chips) in zip(mix.models, sizes, strict=True):
        fleet = replace(each.plan.fleet, replicas=count, replica_chips=chips)
        fleet = replace(fleet, machines=-(-count // (ROOM // chips)))
        models.append(replace(each, plan=replace(each.plan, fleet=fleet)))
    return ModelMix.of(models)


@pytest.mark.long
def test_small_models_share_a_machine(mix: ModelMix) -> None:
    assert (mix.machines, mix.machines_apart) == (1, 2)
    assert [each.name for each in mix.models] == ["qwen3-30b-a3b", "gpt-oss-20b"]
    (group,) = mix.packing
    assert group.replicas == tuple(each.plan.fleet.replicas for each in mix.models)
    assert group.free_chips == mix.free_chips == ROOM - mix.chips_in_service


@pytest.mark.long
def test_watts_and_dollars_are_those_of_the_machine(mix: ModelMix) -> None:
    used = sum(each.plan.fleet.replicas * each.plan.fleet.busy_watts for each in mix.models)
    idle = mix.free_chips * SYSTEM.chip.idle_watts.value
    facility = SystemPower(SYSTEM).facility_watts(used + idle, chips=ROOM)

    assert mix.peak_drawn_watts == pytest.approx(facility.total_watts)
    assert mix.provisioned_watts == pytest.approx(SYSTEM.provisioned_watts.value)
    assert mix.mean_drawn_watts < mix.peak_drawn_watts
    cost = mix.day_cost
    assert cost is not None
    assert cost.dollars_per_hour == pytest.approx(100 + 0.1 * mix.mean_drawn_watts / 1e3)


def test_one_model_alone_is_its_plan(mix: ModelMix) -> None:
    (first, _) = mix.models
    alone = ModelMix.of([MixedModel(share=1.0, plan=first.plan)])

    assert alone.machines == first.plan.machines
    assert alone.peak_drawn_watts == pytest.approx(first.plan.bill.peak_drawn_watts)
    assert alone.mean_drawn_watts == pytest.approx(first.plan.bill.mean_drawn_watts)
    assert alone.provisioned_watts == pytest.approx(first.plan.bill.provisioned_watts)
    assert alone.day_cost is not None
    assert first.plan.bill.day_cost is not None
    assert alone.day_cost.dollars_per_million_output == pytest.approx(
        first.plan.bill.day_cost.dollars_per_million_output
    )


def test_replicas_fill_what_larger_ones_leave(mix: ModelMix) -> None:
    # Three of 100 chips leave 44 of each machine, in which 12 of 11 have room.
    large = sized(mix, (3, 100), (12, 11))

    assert (large.machines, large.machines_apart) == (3, 4)
    assert large.free_chips == 0
    assert large.chips_in_service == large.chips == 3 * ROOM


def test_the_models_share_the_budget(mix: ModelMix) -> None:
    first, second = (each.plan.question.search.budget_s for each in mix.models)

    assert first == pytest.approx(150, abs=1)
    assert 150 < second <= 300  # what the first left is the second's


def test_a_model_that_cannot_be_served_is_named() -> None:
    never = replace(small("gpt-oss-20b", 10.0), slo=Slo.parse("tpot=1us"))
    with pytest.raises(ConfigError, match=r"^gpt-oss-20b: slo=.*: expected what an idle replica"):
        plan_mix([(1.0, never)])


def test_what_fits_nowhere_is_refused_before_any_search() -> None:
    said: list[str] = []
    nowhere = small("deepseek-r1", 1.0)  # on one or two chips
    with pytest.raises(ConfigError, match=r"^deepseek-r1: partition="):
        plan_mix([(0.5, small("gpt-oss-20b", 1.0)), (0.5, nowhere)], progress=said.append)
    assert not said


def test_an_interrupt_before_the_last_model_leaves_no_fleet() -> None:
    with pytest.raises(KeyboardInterrupt):
        plan_mix([(1.0, small("gpt-oss-20b", 10.0))], is_interrupted=lambda: True)


def test_shares_are_weights() -> None:
    asked = ModelShares.parse("deepseek-r1=7, GPT-OSS-120B=3")

    assert [model.name for model in asked.models] == ["deepseek-r1", "gpt-oss-120b"]
    assert asked.shares == pytest.approx((0.7, 0.3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt-oss-20b=1,gpt-oss-21b=2", "did you mean gpt-oss-20b"),
        ("gpt-oss-20b=1,gpt-oss-20b=2", "gpt-oss-20b once"),
        ("gpt-oss-20b=1,deepseek-r1", "its share, too"),
        ("gpt-oss-20b=1,deepseek-r1=half", "a number for its share"),
        ("gpt-oss-20b=1,deepseek-r1=0", "a share above 0"),
        ("gpt-oss-20b=-1", "a share above 0"),
        ("gpt-oss-20b=nan", "a share above 0"),
        ("gpt-oss-20b=inf", "a share above 0"),
        ("gpt-oss-20b=1,", "one of"),
    ],
)
def test_wrong_shares_are_refused_in_one_line(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^model=.*{expected}") as refusal:
        ModelShares.parse(text)
    assert "\n" not in str(refusal.value)


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    requests=st.integers(0, 200),
    seed=st.integers(0, 99),
)
def test_each_request_of_a_trace_is_dealt_to_one_part(
    weights: list[int], requests: int, seed: int
) -> None:
    traffic = Traffic(
        arrival_s=np.arange(requests, dtype=np.float64),
        prompt_tokens=np.full(requests, 8),
        output_tokens=np.full(requests, 2),
    )
    shares = tuple(weight / sum(weights) for weight in weights)
    parts = [
        TrafficPart(shares=shares, number=number, seed=seed).of_trace(traffic)
        for number in range(len(shares))
    ]

    arrivals = np.concatenate([part.arrival_s for part in parts])
    assert sorted(arrivals.tolist()) == traffic.arrival_s.tolist()


def test_a_conversation_is_dealt_whole() -> None:
    requests, turns = 300, 3  # each conversation begins with a block of its own
    blocks = [[number // turns] for number in range(requests)]
    prompt_tokens = np.full(requests, 8)
    traffic = Traffic(
        arrival_s=np.arange(requests, dtype=np.float64),
        prompt_tokens=prompt_tokens,
        output_tokens=np.full(requests, 2),
        blocks=PromptBlocks.of(blocks, tokens=8, prompt_tokens=prompt_tokens),
    )
    part = TrafficPart(shares=(0.5, 0.5), number=0, seed=3).of_trace(traffic)

    _, counts = np.unique(part.arrival_s // turns, return_counts=True)
    assert set(counts.tolist()) == {turns}
    assert len(counts) == pytest.approx(50, abs=20)


def test_a_part_of_a_trace_has_its_share() -> None:
    traffic = Traffic.drawn(rate_per_s=10.0, lengths=DEMAND.lengths, seed=1, requests=20_000)
    part = TrafficPart(shares=(0.7, 0.3), number=1, seed=3)

    assert len(part.of_trace(traffic)) == pytest.approx(6_000, rel=0.05)
    assert part.of_rate(DEMAND).rate_per_s == pytest.approx(0.3 * DEMAND.rate_per_s)
