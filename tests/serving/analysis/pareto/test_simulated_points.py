"""The curve's partitions under a target: the rate that plan finds, and what takes the rest."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.power.efficiency import PowerBasis
from loadgen.measures.slo import Slo
from serving.analysis.pareto.pareto import Pareto, pareto
from serving.analysis.pareto.pareto_chart import pareto_chart
from serving.analysis.pareto.simulated_points import (
    CurveTarget,
    RateLoss,
    SimulatedCurve,
    SimulatedPoint,
    simulated_curve,
)
from serving.analysis.pareto.simulated_points_report import simulated_data, simulated_lines
from serving.analysis.plan.plan import plan
from serving.analysis.plan.plan_margins import RateKept, highest_rates, rate_tasks
from serving.analysis.plan.plan_options import NEAR
from serving.analysis.plan.plan_question import SearchTerms
from serving.analysis.plan.plan_race import LAST_TIMES, POLICIES_KEPT, Race
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import CHECK, DEMAND, QUESTION, SWEEP

pytestmark = pytest.mark.long
TWO_CHIPS = replace(SWEEP, asked=PartitionFilter(chips=(2,), tp=(1,), lnc=(2,)), batches=(1, 8, 64))
TARGET = CurveTarget(
    slo=QUESTION.slo,
    lengths=DEMAND.lengths,
    lengths_in_words="short ones",
    check=replace(CHECK, judged=300),
    search=SearchTerms(policies=("none", "balanced:64:256:1024", "capped:64", "capped:8"), tries=1),
)
BASIS = PowerBasis.PROVISIONED


@pytest.fixture(scope="module")
def curve() -> Pareto:
    """Partitions of two chips that fill the machine."""
    return pareto((TWO_CHIPS,))


@pytest.fixture(scope="module")
def found(curve: Pareto) -> SimulatedCurve:
    return simulated_curve(curve, TARGET)


@pytest.fixture(scope="module")
def best(curve: Pareto, found: SimulatedCurve) -> SimulatedPoint:
    return found.of(curve.machines[0], BASIS)[0]


@pytest.mark.slow
def test_the_rate_is_the_one_that_plan_s_bisection_finds(best: SimulatedPoint) -> None:
    race = Race(best.question, THIS_PROCESS, lambda _: None)
    task = [*rate_tasks(best.question, best.setting, race).values()][-1]

    assert highest_rates([task], THIS_PROCESS) == [best.kept]


def test_no_other_policy_that_is_tried_keeps_a_higher_rate(best: SimulatedPoint) -> None:
    race = Race(best.question, THIS_PROCESS, lambda _: None)
    tried = TARGET.search.policies[:POLICIES_KEPT]
    tasks = [
        race.task(replace(best.setting, policy=each), judged=LAST_TIMES * 300) for each in tried
    ]

    assert max(each.requests_per_s for each in highest_rates(tasks, THIS_PROCESS)) == (
        best.kept.requests_per_s
    )
    assert best.setting.policy in tried


@pytest.mark.slow
def test_plan_meets_the_target_at_that_rate_with_as_many_chips(best: SimulatedPoint) -> None:
    partition = best.setting.option.candidate.partition
    asked = PartitionFilter(
        chips=(partition.chips,), tp=(partition.tp,), ep=(partition.ep,), lnc=(2,)
    )
    answer = plan(
        replace(
            QUESTION,
            sweep=replace(TWO_CHIPS, asked=asked),
            demand=DEMAND.sped_up(best.rate.requests_per_s / DEMAND.rate_per_s),
            check=TARGET.check,
            search=SearchTerms(policies=(best.setting.policy,), tries=1),
            pools=False,
            margins=False,
        )
    )

    assert answer.choice.check.surely_meets
    assert 1 / NEAR < answer.choice.setting.chips / best.setting.chips < NEAR


def test_a_point_lies_where_its_simulation_does(curve: Pareto, best: SimulatedPoint) -> None:
    check, point = best.rate.check, best.setting.option.point
    assert check is not None
    tpot_s = check.percentiles_s["tpot"][0]
    assert tpot_s is not None
    assert best.tokens_per_s_per_user == pytest.approx(1 / tpot_s.value)
    per_mw = best.rate.requests_per_s * 16 / (point.provisioned_watts / 1e6)
    assert best.tokens_per_s_per_mw(BASIS) == pytest.approx(per_mw)
    assert best.tokens_per_s_per_mw(PowerBasis.DRAWN) > per_mw  # no chip draws its whole budget
    assert best.setting.chips == SWEEP.system.chips.count
    assert best.steady_tokens_per_s_per_mw(BASIS) > 0


def ladder(best: SimulatedPoint, *shares: float) -> SimulatedPoint:
    """With rates at these shares of the steady state's."""
    rates = [
        RateKept(traffic="", requests_per_s=share * best.steady_requests_per_s) for share in shares
    ]
    *rungs, kept, rate = rates
    return replace(best, rungs=dict(zip(RateLoss, rungs, strict=False)), kept=kept, rate=rate)


def test_losses_by_hand(best: SimulatedPoint) -> None:
    falling = ladder(best, 0.9, 0.85, 0.5, 0.45, 0.43)
    expected = dict(zip(RateLoss, (0.1, 0.05, 0.35, 0.05, 0.02), strict=True))

    assert falling.losses() == pytest.approx(expected)
    assert falling.largest_loss is RateLoss.SPREAD
    assert ladder(best, 1.1, 1.1, 1.1, 1.1, 1.1).largest_loss is None
    unknown = replace(falling, rate=replace(falling.rate, is_found=False))
    assert unknown.losses() == {}
    assert unknown.largest_loss is None


@given(shares=st.lists(st.floats(0.01, 2.0), min_size=5, max_size=5))
def test_losses_add_up_to_what_is_lost(best: SimulatedPoint, shares: list[float]) -> None:
    assert sum(ladder(best, *shares).losses().values()) == pytest.approx(1 - shares[-1])


def test_every_point_says_what_takes_the_rest(curve: Pareto, found: SimulatedCurve) -> None:
    assert found.is_whole
    assert len(found.points) == found.candidates > 0
    for point in found.of(curve.machines[0], BASIS):
        assert set(point.losses()) == set(RateLoss)
    text = "\n".join(simulated_lines(found, curve, 5))
    assert "simulated under the SLO: TTFT p95 <= 300 ms, TPOT p95 <= 20 ms; Poisson" in text
    assert "cut short" not in text
    data = simulated_data(found, BASIS)
    assert [each["requests_per_s"] for each in data["points"]] == [
        each.rate.requests_per_s for each in found.points
    ]


def test_a_target_on_one_limit_has_no_rung_of_the_other(curve: Pareto) -> None:
    def losses(slo: str) -> set[RateLoss]:
        target = replace(TARGET, slo=Slo.parse(slo))
        return set(simulated_curve(curve, target).of(curve.machines[0], BASIS)[0].losses())

    assert losses("ttft=300ms@p90") == set(RateLoss) - {RateLoss.INTERFERENCE}
    assert losses("tpot=20ms@p90") == set(RateLoss) - {RateLoss.QUEUEING}


def test_a_target_out_of_reach_has_no_points(curve: Pareto) -> None:
    found = simulated_curve(curve, replace(TARGET, slo=Slo.parse("tpot=1us")))

    assert found.points == ()
    assert found.unable > 0
    assert "none was simulated" in "\n".join(simulated_lines(found, curve, 5))


def test_without_time_it_says_that_it_was_cut_short(curve: Pareto) -> None:
    hurried = replace(TARGET, search=replace(TARGET.search, budget_s=1e-9))
    begun_s = time.monotonic()
    found = simulated_curve(curve, hurried)

    assert time.monotonic() - begun_s < 5
    assert found.points == ()
    assert not found.is_whole
    assert "cut short" in "\n".join(simulated_lines(found, curve, 5))


def test_an_interrupt_leaves_the_points_found_so_far() -> None:
    both = pareto((replace(TWO_CHIPS, asked=PartitionFilter(chips=(1, 2), tp=(1,), lnc=(2,))),))
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            raise KeyboardInterrupt

    found = simulated_curve(both, TARGET, progress=interrupt)

    assert len(found.points) == 1
    assert found.candidates > 1
    assert not found.is_whole


def test_the_chart_marks_the_points_with_a_legend(curve: Pareto, found: SimulatedCurve) -> None:
    drawn = pareto_chart(curve, found).to_dict()
    layers = [layer for panel in drawn["vconcat"] for layer in panel["layer"]]
    (marks,) = [layer for layer in layers if "shape" in layer["encoding"]]
    rows = drawn["datasets"][marks["data"]["name"]] if "name" in marks["data"] else marks["data"]
    rows = rows["values"] if isinstance(rows, dict) else rows

    points = found.of(curve.machines[0], BASIS)
    assert [row["tokens/s/MW"] for row in rows] == [
        pytest.approx(each.tokens_per_s_per_mw(BASIS), rel=1e-4) for each in points
    ]
    assert "simulated under TTFT p95" in marks["encoding"]["shape"]["scale"]["domain"][0]
