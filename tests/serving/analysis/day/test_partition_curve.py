"""Curves of one engine's groups by how many of them serve, its hand-overs, and its walk."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from serving.analysis.day.curve_search import sizes_of
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.held_day import ExactQuestion, HeldDay, held_day, held_stretch
from serving.analysis.day.kept_figures import MachineFigures
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.partition_curve import PartitionCurve
from serving.analysis.day.partition_handover import PartitionHandover, partition_handover
from serving.analysis.day.replica_choice import choose_replica
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import RateTask, ReplicaUnderTest, run_at_rate
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.policy.day_night.policy import Fixed
from serving.simulator import SimulatedDeployment
from serving.simulator.simulated_machine import machine_of
from serving.wire.control_call import DrainRequest
from tests.serving.analysis.day.days import (
    CHOICE,
    CURVE,
    HANDOVER,
    demand,
    machine,
    outcomes,
    point,
    walked,
)
from tests.serving.analysis.day.days import trained as yields
from tests.serving.analysis.day.test_exact_hour import SLO, SWEEP, replica
from tests.serving.analysis.day.test_held_day import TERMS

FASTER = ReplicaCurve(
    points=(point(2.0, 1.0), point(4.0, 1.0), point(6.0, 0.9)),
    saturated_per_s=8.0,
    required_share=0.99,
    idle_watts=100.0,
    lasting_per_s=np.inf,
    ttft_limit_s=None,
    tpot_limit_s=None,
)
"""While two groups serve, at twice the rates of four; draws as much at a rate."""
BOTH = PartitionCurve(serving=(2, 4), curves=(FASTER, CURVE))


def test_at_a_simulated_number_of_groups_figures_are_those_of_its_curve() -> None:
    at = np.array([0.0, 0.5, 1.0, 2.5, 3.9])
    for serving, curve in ((4.0, CURVE), (2.0, FASTER), (1.0, FASTER), (5.0, CURVE)):
        assert BOTH.share("both_share", at, serving) == pytest.approx(curve.share("both_share", at))
        assert BOTH.chip_watts(at, serving) == pytest.approx(curve.chip_watts(at))
        assert BOTH.seconds("ttft_p99_s", at, serving) == pytest.approx(
            curve.seconds("ttft_p99_s", at)
        )
        assert BOTH.saturated_at(serving) == curve.saturated_per_s
    assert BOTH.chip_watts(at) == pytest.approx(CURVE.chip_watts(at))
    assert (BOTH.capacity_per_s, BOTH.least_capacity_per_s) == (CURVE.capacity_per_s,) * 2


def test_no_rates_have_no_figures() -> None:
    none = np.zeros(0)
    assert BOTH.tail("ttft_tail_s", none, none).shape == CURVE.tail("ttft_tail_s", none).shape


def test_between_two_numbers_of_groups_figures_lie_between_at_the_same_load() -> None:
    """Three groups saturate at 6 requests/s each: 3 are a half, as 4 of 8 and 2 of 4."""
    three = np.array([3.0])
    assert BOTH.saturated_at(3.0) == 6.0
    assert BOTH.share("both_share", three, 3.0) == pytest.approx([1.0])
    assert BOTH.chip_watts(three, 3.0) == pytest.approx([(200.0 + 300.0) / 2])
    assert BOTH.seconds("ttft_p99_s", three, 3.0) == pytest.approx([(0.2 + 0.4) / 2])


@given(serving=st.floats(0.5, 6.0), rates=st.lists(st.floats(0.0, 10.0), min_size=2, max_size=9))
def test_at_any_number_of_groups_shares_never_rise_with_the_rate(
    serving: float, rates: list[float]
) -> None:
    shares = BOTH.share("both_share", np.sort(rates), serving)
    assert (np.diff(shares) <= 1e-12).all()
    low = BOTH.least_chip_watts(np.sort(rates), serving)
    assert (low <= BOTH.chip_watts(np.sort(rates), serving) + 1e-9).all()


@pytest.mark.parametrize("serving", [(), (2,), (4, 2), (0, 4), (2, 2)])
def test_curves_without_numbers_that_ascend_are_refused(serving: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="serving"):
        PartitionCurve(serving=serving, curves=(FASTER, CURVE))


def test_a_walk_serves_what_so_many_groups_serve_together() -> None:
    """900 requests a minute are 7.5 a second for each of two groups; replicas serve 4."""
    terms = WalkTerms(interval_s=60.0, look_s=60.0)
    wanted = demand(*[900] * 4)
    walk = walked(wanted, Fixed(serving_groups=2), terms, curve=BOTH)
    assert walk.serving.tolist() == [2.0] * 4
    assert walk.served.tolist() == [900.0] * 4
    assert walk.group_rates.tolist() == [7.5] * 4
    replicas = walked(wanted, Fixed(serving_groups=2), terms, curve=CURVE)
    assert replicas.served.tolist() == [480.0] * 4


def test_groups_that_an_engine_keeps_serve_whatever_is_wanted() -> None:
    terms = WalkTerms(interval_s=60.0, look_s=60.0)
    kept = replace(HANDOVER, groups_min=3)
    found: LookOutcomes = outcomes(yields(4), terms, kept)
    assert found.outcome(0, 1, 1) is found.outcome(0, 3, 1)
    assert found.outcome(0, 1, 1) is not found.outcome(0, 4, 1)


def test_few_groups_are_simulated_in_every_number_and_many_in_some() -> None:
    assert sizes_of(4, groups_min=2) == [4, 3, 2]
    assert sizes_of(12, groups_min=1) == [12, 9, 6, 3, 1]
    assert sizes_of(12, groups_min=4) == [12, 9, 6, 4]


def test_kept_curves_of_parts_are_a_partition_s() -> None:
    parts = PartitionHandover(groups_min=2, restore_s=1.0, still_s=0.1, joules=5.0)
    kept = MachineFigures(
        choice=CHOICE, serving=(2, 4), curves=(FASTER, CURVE), trained=yields(4), parts=parts
    )
    assert kept.curve == BOTH


def an_engine(*, chips: int = 8, group_chips: int = 2) -> ReplicaUnderTest:
    """Whose parts change hands, with few keys and values."""
    sweep = replace(SWEEP, asked=PartitionFilter(chips=(chips,), tp=(1,), lnc=(2,)))
    choice = choose_replica(sweep, SLO, longest_tokens=600, seats=64, group_chips=group_chips)
    return replace(replica(), sweep=sweep, candidate=choice.candidate, group_chips=group_chips)


@pytest.mark.long
def test_hand_overs_are_those_of_a_run_with_the_same_calls() -> None:
    engine = an_engine()
    found = partition_handover(engine)
    assert found.groups_min == 1
    deployment: SimulatedDeployment = engine.deployment()
    served = machine_of(deployment.cost_model)
    reading_s = served.reading(range(6, 8)).duration_ns / NS_PER_S
    assert found.restore_s == pytest.approx(reading_s, rel=1e-6)
    idle_joules = deployment.cost_model.idle_chip_watts * 2 * reading_s
    assert idle_joules < found.joules < 2 * idle_joules
    assert 0.0 < found.still_s < 0.1


@pytest.mark.long
def test_groups_stay_without_which_the_experts_do_not_fit() -> None:
    engine = an_engine(chips=4, group_chips=1)
    assert partition_handover(engine).groups_min == 1
    blocks = engine.candidate.kv_capacity_tokens // engine.limits.block_tokens
    full = replace(engine, limits=replace(engine.limits, kv_blocks_per_rank=blocks))
    with pytest.raises(
        ConfigError, match=r"group-chips=1: .* the 128 experts of a layer still fit"
    ):
        partition_handover(full)
    fuller = replace(engine, limits=replace(engine.limits, kv_blocks_per_rank=blocks * 9 // 10))
    filled = machine_of(fuller.cost_model())
    filled.take_kv(fuller.limits.kv_blocks_per_rank * fuller.limits.block_tokens)
    least = -(-128 // int(filled.capacity().min()))
    assert 1 < least < 4
    assert partition_handover(fuller).groups_min == least


@pytest.mark.long
def test_a_rate_with_groups_away_is_that_of_an_engine_whose_chips_have_left() -> None:
    engine = an_engine()
    away = engine.with_away(2)
    assert [
        each.call.chips for each in away.departures() if isinstance(each.call, DrainRequest)
    ] == [
        (6, 7),
        (4, 5),
    ]
    task = RateTask(replica=away, rate_per_s=40.0, judged=60, lead_s=0.5, seed=1)
    found, whole = run_at_rate(task), run_at_rate(replace(task, replica=engine))
    assert found.chip_watts < whole.chip_watts
    assert found.tpot_mean_s != whole.tpot_mean_s
    one = found.of_group(away.serving)
    assert (one.rate_per_s, one.chip_watts) == (20.0, found.chip_watts / 2)
    assert one.both_share == found.both_share


@pytest.mark.slow
def test_a_stretch_of_an_engine_s_parts_is_simulated_with_their_hand_overs() -> None:
    engine = an_engine()
    terms = replace(TERMS, groups=4, look_s=20.0)
    small = replace(machine(4), curve=BOTH, group_chips=2)
    wanted = demand(*[200] * 12, interval_s=10.0)
    walk = walked(
        wanted, Fixed(serving_groups=2), WalkTerms(interval_s=10.0, look_s=20.0), curve=BOTH
    )
    result = DayResult(machine=small, walk=walk, policy="fixed:2", describes="")
    held = held_stretch(result, engine, terms, begin_s=0.0, length_s=60.0)
    assert held.requests == 1_200
    assert held.handovers.exact == held.handovers.walked == 2.0
    assert held.joules.exact > 0.0
    assert 0.0 <= held.both.exact <= 1.0


@pytest.mark.long
@pytest.mark.slow
def test_chips_of_an_engine_whose_parts_change_hands_are_lost_and_repaired() -> None:
    engine = an_engine()
    terms = replace(TERMS, groups=4, look_s=20.0)
    small = replace(machine(4), curve=BOTH, group_chips=2)
    wanted = demand(*[200] * 6, interval_s=10.0)
    looks = WalkTerms(interval_s=10.0, look_s=20.0)
    walk = walked(wanted, Fixed(serving_groups=3), looks, curve=BOTH)
    result = DayResult(machine=small, walk=walk, policy="fixed:3", describes="")

    def day(loss_every_s: float | None) -> HeldDay:
        asked = ExactQuestion(loss_every_s=loss_every_s, repair_s=15.0)
        return held_day(result, engine, terms, asked, progress=lambda _: None)

    whole, struck = day(None), day(20.0)
    assert struck.requests == whole.requests == 1_200
    assert struck.both.exact < whole.both.exact  # an engine stands still while it recovers
    assert struck.both.walked == whole.both.walked  # of which the walk knows nothing
    assert struck.joules.exact != whole.joules.exact
    assert struck.ttft_p99_s.exact > whole.ttft_p99_s.exact


def test_groups_are_whole_ranks_and_several() -> None:
    for chips, tp, group_chips in ((2, 1, 2), (4, 2, 1), (6, 1, 4)):
        asked = PartitionFilter(chips=(chips,), tp=(tp,), lnc=(2,))
        sweep = replace(SWEEP, asked=asked)
        with pytest.raises(ConfigError, match="group-chips") as caught:
            choose_replica(sweep, SLO, longest_tokens=600, seats=64, group_chips=group_chips)
        assert f"{chips} chips in ranks of {tp}" in str(caught.value)
