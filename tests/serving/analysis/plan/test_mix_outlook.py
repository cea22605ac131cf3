"""What comes after a plan of several models: machines by hand, from what one replica takes."""

from dataclasses import replace

import pytest

from emulator.faults.recovery_time import RecoveryRates
from reporting.plain_text import document_lines
from serving.analysis.plan.cold_start import ColdStart
from serving.analysis.plan.growth import Growth
from serving.analysis.plan.mix_outlook import fleet_growth, warm_fleet
from serving.analysis.plan.model_mix import MixedModel, ModelMix, plan_mix
from serving.analysis.plan.model_mix_report import ModelMixReport
from serving.analysis.plan.plan_cold_start import (
    ColdStartGap,
    ColdStartTerms,
    GapCase,
    LimitShares,
    PlanColdStart,
)
from serving.analysis.plan.plan_growth import MonthSize, PlanGrowth
from serving.analysis.plan.plan_outlook import OutlookTerms, PlanOutlook
from serving.analysis.plan.plan_question import LostPart
from tests.serving.analysis.plan.test_model_mix import ROOM, sized, small

MONTHS = 3


@pytest.fixture(scope="module")
def mix() -> ModelMix:
    return plan_mix([(0.75, small("qwen3-30b-a3b", 30.0)), (0.25, small("gpt-oss-20b", 10.0))])


def grown(each: MixedModel, monthly: float, replicas: int) -> MixedModel:
    """It grows, from now on with `replicas` full ones."""
    peak_per_s = each.plan.question.demand.peak_rate_per_s
    growth = Growth(monthly=monthly, months=MONTHS)
    months = []
    for month in range(MONTHS + 1):
        factor = growth.factor(month)
        count = -(-round(replicas * factor * 1e9) // 10**9)
        months.append(
            MonthSize(
                month=month, requests_per_s=peak_per_s * factor, replicas=count, machines=count
            )
        )
    found = PlanGrowth(
        growth=growth,
        replica_requests_per_s=peak_per_s / replicas,
        in_service_until=0.0,
        machines_until=0.0,
        months=tuple(months),
        orders=(),
        why_not="",
    )
    return replace(each, outlook=PlanOutlook(growth=found))


@pytest.mark.long
def test_a_machine_is_needed_when_all_models_together_fill_the_last_one(mix: ModelMix) -> None:
    # Two of 50 chips and four of 11 fill one machine of 144. The first model doubles each month, so
    # that a third replica is needed at once; a machine holds two, so that the fifth, in month
    # log2(4 / 2), needs a third machine, and the ninth, in month log2(8 / 2), a fifth.
    small_ones = sized(mix, (2, 50), (4, 11))
    first, second = small_ones.models
    fleet = ModelMix.of([grown(first, 1.0, 2), second])
    found = fleet_growth(fleet)

    assert fleet.machines == 1
    assert found is not None
    assert [each.replicas for each in found.months] == [(2, 4), (4, 4), (8, 4), (16, 4)]
    assert [each.machines for each in found.months] == [1, 2, 4, 8]
    assert [(each.first, each.last) for each in found.orders] == [(2, 2), (3, 4), (5, 8)]
    needed = [each.needed_month for each in found.orders]
    assert needed == pytest.approx([0.0, 1.0, 2.0])
    assert all(
        each.order_month == pytest.approx(each.needed_month - found.any_growth.lead_months)
        for each in found.orders
    )


@pytest.mark.long
def test_models_that_grow_together_share_what_is_added(mix: ModelMix) -> None:
    # Each alone would need a second machine in month 1; together they need two more, not three.
    both = sized(mix, (2, 72), (1, 72))
    first, second = both.models
    fleet = ModelMix.of([grown(first, 0.5, 2), grown(second, 1.0, 1)])
    found = fleet_growth(fleet)

    assert found is not None
    assert found.months[1].replicas == (3, 2)
    assert found.months[1].machines == 3
    assert found.months[0].machines == fleet.machines == 2


def test_without_growth_there_is_none(mix: ModelMix) -> None:
    assert fleet_growth(mix) is None
    assert warm_fleet(mix) is None


def started(each: MixedModel, *warm: int | None) -> MixedModel:
    """Its gaps, of which each needs so many kept warm; None: no number was enough."""
    gaps = []
    for count in warm:
        share = LimitShares(
            name="ttft", percentile=90.0, during=float(count is not None), after=1.0
        )
        case = GapCase(warm=count or 0, before=1, during=1, after=1, limits=(share,))
        gaps.append(ColdStartGap(surge=None, gap_s=1.0, requests=1.0, cases=(case,), is_whole=True))
    one = cold_start()
    return replace(each, outlook=PlanOutlook(cold_start=PlanColdStart(one=one, gaps=tuple(gaps))))


def cold_start() -> ColdStart:
    rate = RecoveryRates().drives_bytes_per_s
    return ColdStart(start_s=30.0, read_bytes=1, read_s=1.0, tray_rate=rate, warm_up_s=0.1)


def test_replicas_kept_warm_are_those_of_the_worse_gap_of_each_model(mix: ModelMix) -> None:
    first, second = sized(mix, (2, 50), (4, 11)).models
    kept = ModelMix.of([started(first, 1, 3), started(second, 0, 2)])
    unknown = ModelMix.of([started(first, 1, None), started(second, 0, 2)])

    assert warm_fleet(kept) == (5, 6)
    assert kept.machines_for((5, 6)) == 3
    assert warm_fleet(unknown) is None
    text = "\n".join(document_lines(ModelMixReport(mix=kept, command="").answer()))
    assert "5 replicas of all models more than planned; 3 machines for all" in text


@pytest.mark.slow
def test_growth_cold_starts_and_a_machine_s_loss_of_a_small_fleet() -> None:
    asked = [
        (0.75, replace(small("qwen3-30b-a3b", 300.0), lose=LostPart.MACHINE)),
        (0.25, replace(small("gpt-oss-20b", 100.0), lose=LostPart.MACHINE)),
    ]
    growth = OutlookTerms(
        growth=Growth(monthly=1.0, months=4), cold_start=ColdStartTerms(start_s=1.0)
    )
    fleet = plan_mix(asked, outlooks=[growth, OutlookTerms(cold_start=growth.cold_start)])

    for number, each in enumerate(fleet.models):
        kept = each.plan.kept_loss
        assert kept is not None
        (loss,) = kept.losses
        of_machine = max(of.replicas[number] for of in fleet.packing)
        assert kept.setting.replicas - of_machine >= loss.replicas_left >= 1
        assert each.outlook.cold_start is not None
    assert fleet.machines >= 2
    found = fleet_growth(fleet)
    assert found is not None
    first, last = found.months[0], found.months[-1]
    assert first.machines == fleet.machines
    assert last.replicas[0] > first.replicas[0]
    assert last.replicas[1] == first.replicas[1]
    report = ModelMixReport(mix=fleet, command="")
    text = "\n".join(document_lines(report.answer()))
    assert (
        "if the traffic grows each month: that of qwen3-30b-a3b by 100 %, that of gpt-oss-20b"
        in text
    )
    assert "a machine may be lost" in text
    assert "replicas are spread evenly" not in text
    data = report.fields()
    assert [each["ultraservers"] for each in data["growth"]["by_month"]] == [
        each.machines for each in found.months
    ]
    assert data["models"][1]["growth"] is None
    assert len(report.charts()) == 2
    assert ROOM * fleet.machines == fleet.chips
