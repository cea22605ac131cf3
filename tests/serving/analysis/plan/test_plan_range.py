from dataclasses import replace

import pytest

from emulator.specs.shipped_fits import calibration_for
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan import plan, slowed
from serving.analysis.plan.plan_report import plan_data, range_lines
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from tests.serving.analysis.plan.planned import CHECK, DEMAND, QUESTION, SWEEP, question

FITTED = replace(
    SWEEP,
    asked=PartitionFilter(chips=(1,), lnc=(2,)),
    assumptions=StepAssumptions(calibration=calibration_for("trainium3")),
)


def test_steps_twice_as_long_serve_as_twice_the_rate_within_half_the_limits() -> None:
    harder = slowed(QUESTION, 2.0)

    assert harder.demand.peak_rate_per_s == 2 * DEMAND.peak_rate_per_s
    assert [bound.limit for bound in harder.slo.bounds] == [150.0, 10.0]
    assert [bound.percentile for bound in harder.slo.bounds] == [95.0, 95.0]
    assert slowed(harder, 0.5).slo == QUESTION.slo


@pytest.mark.long
def test_a_plan_needs_more_where_steps_are_slower_than_predicted() -> None:
    asked = question(
        sweep=FITTED,
        demand=replace(DEMAND, rate_per_s=60.0),
        slo=Slo.parse("ttft=300ms,tpot=40ms@p90"),
        check=replace(CHECK, judged=40),
    )
    found = plan(asked)

    assert found.range is not None
    fewest, most = found.range.fewest, found.range.most
    assert fewest is not None
    assert most is not None
    assert fewest <= found.fleet.replicas <= most
    data = plan_data(found)["range_80"]
    assert data["replicas"] == [fewest, most]
    assert data["plan_keeps_target_at_bad_end"] == (most <= found.fleet.replicas)
    (line,) = range_lines(found)
    assert line.startswith(f"80 %:  {fewest:,}")


@pytest.mark.long
def test_a_roofline_plan_has_no_range() -> None:
    found = plan(question(check=replace(CHECK, judged=30)))

    assert found.range is None
    assert not [*range_lines(found)]
    assert plan_data(found)["range_80"] is None
