"""What a day came to, beside figures that others work out."""

import numpy as np
import pytest

from emulator.power.system_power import SystemPower
from emulator.specs.models import model_by_name
from emulator.timing.model_flops import served_flops
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.day_comparison import DayQuestion, compare
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_result import DayResult, mean_request_flops
from serving.analysis.day.day_trace_file import sample_week
from serving.policy.day_night.policy import Never
from tests.serving.analysis.day.days import CURVE, HANDOVER, SYSTEM, demand, machine, walked


@pytest.mark.parametrize("each_watts", [200.0, 317.0, 500.0])
def test_facility_watts_are_those_of_the_power_model(each_watts: float) -> None:
    watts = 144 * each_watts
    exact = SystemPower(SYSTEM).facility_watts(watts, chips=144).total_watts
    assert machine().facility_watts(np.array([watts]))[0] == pytest.approx(exact)


def test_a_day_without_requests_is_kept_and_draws_idle_power() -> None:
    terms = WalkTerms(interval_s=60.0, look_s=60.0)
    result = DayResult(
        machine=machine(), walk=walked(demand(0, 0), Never(), terms), policy="never", describes=""
    )

    assert result.slo_attainment == 1.0
    assert result.keeps_target
    idle = 4 * CURVE.idle_watts + 140 * SYSTEM.chip.idle_watts.value
    assert result.chip_watts.tolist() == [idle, idle]


def test_flops_of_a_request_are_the_mean_over_its_lengths() -> None:
    model = model_by_name("qwen3-30b-a3b")
    prompts, outputs = np.array([100, 2_000]), np.array([5, 50])
    lengths = ObservedLengths(prompt_tokens=prompts, output_tokens=outputs)

    both = [
        served_flops(model, prompt_tokens=100, output_tokens=5),
        served_flops(model, prompt_tokens=2_000, output_tokens=50),
    ]
    assert mean_request_flops(model, lengths) == pytest.approx(sum(both) / 2)


@pytest.mark.long
def test_policies_meet_the_same_requests_beside_the_three_they_are_held_against() -> None:
    question = DayQuestion(
        trace=sample_week(),
        begin_s=86_400.0,
        length_s=43_200.0,
        policies=("demand",),
        peak_shares=(0.7,),
        terms=WalkTerms(),
        cold=True,
    )
    (load,) = compare(question, machine(12), HANDOVER)

    assert [each.policy for each in load.results] == ["demand", "never", "oracle"]
    assert {each.requests for each in (*load.results, load.fixed)} == {load.results[0].requests}
    assert load.never.training_tokens == 0
    # The split that was found keeps the target, and one group fewer does not.
    assert load.fixed.keeps_target
    serving = int(load.fixed.policy.removeprefix("fixed:"))
    fewer = compare(
        DayQuestion(
            trace=question.trace,
            begin_s=question.begin_s,
            length_s=question.length_s,
            policies=(f"fixed:{serving - 1}",),
            peak_shares=(0.7,),
            terms=question.terms,
            cold=True,
        ),
        machine(12),
        HANDOVER,
    )[0].results[0]
    assert not fewer.keeps_target
    assert fewer.training_tokens > load.fixed.training_tokens > 0
    assert load.results[0].training_tokens > load.fixed.training_tokens
