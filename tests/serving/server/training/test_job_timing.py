from dataclasses import replace

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError, HbmExhausted
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import FITTED, calibration_for
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.training_cost import TrainingCost
from serving.server.training.job_spec import JobSpec
from serving.server.training.job_timing import job_timing

SPEC = JobSpec(weights=str(SMALL_MOE_DIR))


def test_a_job_on_a_slower_machine_takes_longer() -> None:
    slower = job_timing(replace(SPEC, assumptions=("hbm_bandwidth=0.1x",)))

    assert slower.step.duration_ns > job_timing(SPEC).step.duration_ns


def test_a_step_costs_what_the_cost_model_says_of_the_declared_model() -> None:
    spec = replace(
        SPEC, model="qwen3-30b-a3b", chips=8, first_chip=16, batch_tokens=65536,
        sequence_tokens=1024, micro_batch_tokens=4096,
    )  # fmt: skip
    timing = job_timing(spec)

    system = system_by_name("trn3-nl72x2")
    cost = TrainingCost(
        system,
        model_by_name("qwen3-30b-a3b"),
        range(16, 24),
        TrainingRecipe(sequence_tokens=1024, sequences_per_chip=4, micro_batches=2),
        calibration=calibration_for(system.chip.name, name=FITTED),
    )
    assert timing.step.duration_ns == cost.step.duration_ns
    assert timing.step.joules == pytest.approx(cost.step.joules)
    assert timing.step_tokens == 65536
    assert timing.hbm_bytes_per_chip == cost.hbm.chip_bytes
    able = 8 * system.chip.tensor_flops_per_s("bf16") * cost.step.duration_ns / 1e9
    assert timing.mfu == pytest.approx(cost.step.model_flops / able)
    assert timing.mfu < timing.hfu < 1
    assert f"MFU {timing.mfu:.1%} of 629 TFLOP/s bf16 a chip" in timing.described


def test_an_evaluation_costs_the_forward_passes_of_its_tokens() -> None:
    timing = job_timing(SPEC)
    both = [timing.evaluation(tokens) for tokens in (timing.step_tokens, timing.step_tokens // 2)]

    assert 0 < both[0].duration_ns == timing.forward.duration_ns < timing.step.duration_ns / 2
    assert both[1].duration_ns == pytest.approx(both[0].duration_ns / 2, abs=1)
    assert both[1].joules == pytest.approx(both[0].joules / 2)
    half_ns = 0.5001 / timing.forward.duration_ns  # a pass lasts whole ns
    assert both[0].watts == pytest.approx(timing.step.watts, rel=half_ns)


def test_a_checkpoint_takes_as_long_as_its_bytes_to_the_trays_drives() -> None:
    small = job_timing(SPEC).checkpoint
    large = job_timing(replace(SPEC, model="qwen3-30b-a3b", chips=8)).checkpoint

    assert 0 < small.duration_ns < large.duration_ns
    assert large.joules > 0


def test_a_model_that_does_not_fit_is_refused_with_the_chips_that_would_do() -> None:
    with pytest.raises(HbmExhausted, match=r"\d+ chips"):
        job_timing(replace(SPEC, model="gpt-oss-120b", chips=2))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"model": "gpt-9"}, "model"), ({"system": "trn9"}, "system"), ({"first_chip": 143}, "chips")],
)
def test_what_the_catalog_has_not_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        job_timing(replace(SPEC, **wrong))
