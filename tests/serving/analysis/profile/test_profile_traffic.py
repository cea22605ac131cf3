"""A profile in virtual time: the steps that the schedulers decide, as the cost model times them."""

import numpy as np
import pytest

from emulator.errors import ConfigError, HbmExhausted
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.workloads.traffic import Traffic
from serving.analysis.profile.profile_traffic import profile_traffic
from serving.analysis.profile.profiled_run import ProfiledRun
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.simulator import SchedulerLimits
from serving.wire.step_record import StepPhase

SYSTEM, MODEL = system_by_name("trn3-nl72x2"), model_by_name("qwen3-30b-a3b")
PARTITION = Partition(chips=2, tp=1, ep=2, lnc=2, first_chip=70)


def profiled(traffic: Traffic, partition: Partition = PARTITION, model: str = "") -> ProfiledRun:
    timed = model_by_name(model) if model else MODEL
    return profile_traffic(
        traffic,
        SYSTEM,
        timed,
        partition,
        distribution=ExpertDistribution.uniform(timed),
        limits=SchedulerLimits(max_num_seqs=8, block_tokens=16),
        steps_max=100,
        assumed=StepAssumptions(calibration=ROOFLINE),
    )[0]


def one_request(prompt: int, output: int) -> Traffic:
    return Traffic(
        arrival_s=np.array([0.5]),
        prompt_tokens=np.array([prompt]),
        output_tokens=np.array([output]),
    )


def test_one_request_by_hand() -> None:
    run = profiled(one_request(prompt=40, output=3))

    assert [step.phase for step in run.steps] == [
        StepPhase.PREFILL,
        StepPhase.DECODE,
        StepPhase.DECODE,
    ]
    cost_model = StepCostModel(SYSTEM, MODEL, PARTITION, calibration=ROOFLINE)
    expected_ns = [
        cost_model.cost(
            StepBatch(
                ranks=2,
                rank=np.array([0]),
                new_tokens=np.array([new]),
                context_tokens=np.array([context]),
                logit_rows=np.array([1, 0]),
            )
        ).duration_ns
        for new, context in ((40, 0), (1, 40), (1, 41))
    ]
    assert [step.duration_ns for step in run.steps] == expected_ns
    assert run.steps[0].begin_ns == 500_000_000
    assert run.end_ns == 500_000_000 + sum(expected_ns)
    assert run.steps[0].requests_running == (1, 0)
    # Three blocks of 16 tokens hold 40, and two more.
    assert [step.kv_blocks_used for step in run.steps] == [(3, 0)] * 3


def test_the_machine_is_laid_out_as_a_server_s() -> None:
    run = profiled(one_request(prompt=40, output=3))

    first, second = run.chips
    # Chip 70 is the third of the last tray of rack 0.
    assert (first.rack, first.tray, first.position, first.rank) == (0, 17, 2, 0)
    assert (second.position, second.rank) == (3, 1)
    assert first.hbm_capacity_bytes == SYSTEM.chip.hbm_bytes
    held = first.owner_bytes
    assert held["kv"] == run.kv_blocks[0] * 16 * MODEL.kv_bytes_per_token
    # The engine's share of the HBM is full but for a block of each stack's.
    assert sum(held.values()) == pytest.approx(0.92 * SYSTEM.chip.hbm_bytes, rel=1e-3)


@pytest.mark.long
def test_every_token_of_the_traffic_is_in_a_step() -> None:
    traffic = Traffic(
        arrival_s=np.array([0.0, 0.0, 0.001, 0.002]),
        prompt_tokens=np.array([100, 3_000, 7, 64]),
        output_tokens=np.array([1, 5, 9, 2]),
    )
    steps = profiled(traffic).steps

    assert sum(sum(step.prefill_tokens) for step in steps) == 3_171
    assert sum(sum(step.decode_tokens) for step in steps) == 0 + 4 + 8 + 1
    assert {what_if.step for what_if in profiled(traffic).what_ifs} <= {s.step for s in steps}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(HbmExhausted):
        profiled(one_request(prompt=4, output=2), model="deepseek-v3")
    with pytest.raises(ConfigError, match="max_model_len"):
        profiled(one_request(prompt=400_000, output=2))
