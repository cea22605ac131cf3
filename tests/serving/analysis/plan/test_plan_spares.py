"""What a plan has for a loss of chips: the cheapest of spares, engines and replicas more."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measures.slo import Slo
from reporting.plain_text import document_lines
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_choice import choose
from serving.analysis.plan.plan_cost import replicas_per_machine
from serving.analysis.plan.plan_margins import EngineSide, hit
from serving.analysis.plan.plan_question import LostPart, Minimised, PlanQuestion
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_report import plan_data, plan_document
from serving.analysis.plan.plan_spares import kept_through
from serving.analysis.steady_state.partitions import PartitionCandidate, PartitionFilter
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import CHECK, DEMAND, SWEEP, SYSTEM, question

FEW = replace(CHECK, judged=60)
IDLE_WATTS = SYSTEM.chip.idle_watts.value


def asked(lose: LostPart | None, *, chips: int, rate_per_s: float, slo: str) -> PlanQuestion:
    """Of replicas of ranks of one chip each."""
    return question(
        sweep=replace(SWEEP, asked=PartitionFilter(chips=(chips,), tp=(1,), lnc=(2,))),
        demand=replace(DEMAND, rate_per_s=rate_per_s),
        slo=Slo.parse(slo),
        check=FEW,
        pools=False,
        margins=False,
        lose=lose,
    )


ONE_ENGINE = asked(LostPart.CHIP, chips=8, rate_per_s=900.0, slo="ttft=300ms,tpot=20ms@p90")
SMALL_ENGINES = asked(LostPart.TRAY, chips=2, rate_per_s=400.0, slo="ttft=300ms,tpot=20ms@p95")


@pytest.fixture(scope="module")
def spared() -> Plan:
    """A replica that is too slow without a chip."""
    return plan(ONE_ENGINE)


def of_setting(found: Plan, spares: int, *, lost: int) -> SizeTask:
    race = Race(found.question, THIS_PROCESS, lambda _: None)
    task = race.task(found.choice.setting, judged=18_000, early_end=False)  # 20 s
    partition = replace(task.candidate.partition, spares=spares)
    return replace(task, candidate=replace(task.candidate, partition=partition), lost=(lost,))


@pytest.mark.slow
def test_a_spare_is_bought_where_the_target_would_be_missed_without_it(spared: Plan) -> None:
    kept = spared.kept_loss
    assert kept is not None
    (loss,) = kept.losses
    assert loss.check is not None

    assert spared.choice.setting.option.candidate.partition.spares == 1
    assert (loss.what, loss.lost_chips, loss.replicas_left) == ("a chip", 1, 1)
    assert not check_size(of_setting(spared, 0, lost=1)).meets
    again = check_size(of_setting(spared, 1, lost=1))
    assert again.meets
    shares = [[term.share for term in each.terms] for each in (again, loss.check)]
    assert shares[0] == shares[1]
    assert kept.is_whole


@pytest.mark.slow
def test_a_spare_counts_in_chips_and_watts_and_changes_nothing_else(spared: Plan) -> None:
    without, with_two = (check_size(of_setting(spared, spares, lost=0)) for spares in (0, 2))

    assert with_two.replica_chip_watts == pytest.approx(without.replica_chip_watts + 2 * IDLE_WATTS)
    assert with_two.percentiles_s == without.percentiles_s
    assert with_two.chips == without.chips + 2
    kept = spared.kept_loss
    assert kept is not None
    assert spared.fleet.chips_in_service == kept.without.chips + 1 == 9
    assert kept.cost == (9, 9)
    assert spared.replicas_per_machine == SYSTEM.chips.count // 9


@pytest.mark.long
def test_the_loss_stands_in_the_report_and_the_data(spared: Plan) -> None:
    text, data = "\n".join(document_lines(plan_document(spared))), plan_data(spared)

    assert "9 of 144 chips serve, 1 spare among them" in text
    assert "a chip may be lost, with 1 chip more, 1 spare among them: 9 chips instead of 8" in text
    assert "a chip lost: the target is kept, of the 18,000 requests" in text
    assert data["question"]["lose"] == "chip"
    assert data["plan"]["spare_chips"] == data["kept_loss"]["spare_chips"] == 1
    (loss,) = data["kept_loss"]["losses"]
    assert loss["meets"]
    assert loss["reached_s"]["ttft"] > 0


@pytest.mark.long
def test_without_time_one_replica_more_is_the_answer_as_far_as_it_can_be_checked() -> None:
    choice = choose(ONE_ENGINE, THIS_PROCESS, lambda _: None)

    def kept(ends_s: float) -> object:
        race = Race(ONE_ENGINE, THIS_PROCESS, lambda _: None, ends_s=time.monotonic() - 1)
        return kept_through(ONE_ENGINE, choice, race, THIS_PROCESS, ends_s=ends_s)

    found = kept(float("inf"))
    assert found is not None
    assert found.setting == replace(choice.setting, replicas=choice.setting.replicas + 1)
    assert found.losses[0].check == choice.check
    assert not found.is_whole
    assert kept(time.monotonic() - 1) is None


@pytest.mark.long
def test_a_tray_takes_whole_replicas_that_are_no_larger() -> None:
    found = plan(SMALL_ENGINES)
    assert found.kept_loss is not None
    (loss,) = found.kept_loss.losses

    assert loss.replicas_left == found.fleet.replicas - 2
    assert loss.check is not None
    assert loss.check.meets
    assert loss.check.replicas == loss.replicas_left
    assert found.fleet.replicas <= found.kept_loss.without.replicas + 2


@pytest.mark.slow
@pytest.mark.parametrize("minimise", [Minimised.CHIPS, Minimised.MACHINES])
def test_a_machine_may_be_lost_of_those_over_which_the_replicas_are_spread(
    minimise: Minimised,
) -> None:
    asked_for = replace(SMALL_ENGINES, lose=LostPart.MACHINE, minimise=minimise)
    found = plan(asked_for)
    kept = found.kept_loss
    assert kept is not None
    (loss,) = kept.losses

    assert kept.machines == found.machines == 2
    assert found.fleet.replicas <= 2 * replicas_per_machine(asked_for, kept.setting.option)
    assert loss.replicas_left == found.fleet.replicas / 2 == kept.without.replicas
    assert kept.cost[0] == (found.fleet.chips_in_service if minimise is Minimised.CHIPS else 2)
    assert "replicas are spread evenly over 2 machines" in document_text(found)


def document_text(found: Plan) -> str:
    return "\n".join(document_lines(plan_document(found)))


@pytest.mark.long
@pytest.mark.slow
def test_a_unit_of_pools_keeps_the_target_through_a_loss_on_either_side() -> None:
    found = plan(
        question(
            sweep=replace(SWEEP, asked=PartitionFilter(chips=(1, 2, 6), lnc=(2,))),
            check=FEW,
            margins=False,
            lose=LostPart.CHIP,
            demand=replace(DEMAND, rate_per_s=800.0),
        )
    )
    kept = found.kept_loss
    assert kept is not None
    assert all(loss.check is not None and loss.check.meets for loss in kept.losses)
    assert kept.check.chips >= kept.without.chips
    sides = 1 if kept.setting.replicas > kept.without.replicas or not kept.check.prefill else 2
    assert len(kept.losses) == sides


@pytest.mark.long
def test_nothing_is_bought_without_a_loss_that_is_asked_for() -> None:
    found = plan(replace(ONE_ENGINE, lose=None))

    assert found.kept_loss is None
    assert found.fleet.chips_in_service == 8
    assert "loss:" not in document_text(found)


@pytest.mark.slow
def test_requests_that_a_dead_engine_gives_up_have_missed_the_target(spared: Plan) -> None:
    dead = check_size(of_setting(spared, 0, lost=8))

    assert [term.share for term in dead.terms] == [0.0, 0.0]


@given(engine_chips=st.integers(1, 9), chips=st.integers(1, 9))
def test_a_tray_has_chips_of_as_many_engines_as_lie_on_it(engine_chips: int, chips: int) -> None:
    trays = [
        {place // engine_chips for place in range(at, at + chips)} for at in range(0, 720, chips)
    ]

    assert hit(engine_chips, chips) == (max(map(len, trays)) if chips >= engine_chips else 1)


@given(
    engine_chips=st.integers(1, 9),
    engines=st.integers(1, 5),
    first=st.integers(0, 3),
    chips=st.integers(1, 9),
)
def test_a_side_loses_chips_of_its_first_engines(
    engine_chips: int, engines: int, first: int, chips: int
) -> None:
    partition = replace(SWEEP.tasks()[0][1].partition, chips=engine_chips, tp=1, ep=engine_chips)
    candidate = PartitionCandidate(
        partition=partition, replicas=engines, first_chip=0, kv_capacity_tokens=1
    )
    lost = EngineSide(words="", candidate=candidate, engines=engines, first=first).lost(chips)

    assert lost[:first] == (0,) * first
    assert sum(lost) == min(chips, engines * engine_chips)
    assert len(lost) <= first + engines
    assert max(lost) <= engine_chips
