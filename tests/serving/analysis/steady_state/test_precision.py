from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.chips import CHIPS
from emulator.specs.models import MODELS
from serving.analysis.steady_state.precision import model_at, precisions_of
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import Sweep, operating_points
from tests.serving.analysis.steady_state.small_machines import DENSE, MODEL, SHAPE, trays


@pytest.mark.parametrize(
    ("chip", "has"),
    [
        ("trainium1", ("bf16", "fp8")),
        ("trainium2", ("bf16", "fp8")),
        ("trainium3", ("bf16", "fp8", "mxfp4")),
        ("h200", ("bf16", "fp8", "mxfp4")),
        ("b200", ("bf16", "fp8", "mxfp4", "nvfp4")),
        ("mi355x", ("bf16", "fp8", "mxfp4")),
    ],
)
def test_a_chip_serves_what_it_multiplies_and_a_gpu_what_it_unpacks(chip: str, has) -> None:
    assert precisions_of(CHIPS[chip], MODEL) == has


def test_four_bits_are_for_experts() -> None:
    assert precisions_of(CHIPS["trainium3"], DENSE) == ("bf16", "fp8")


def test_a_checkpoint_in_four_bits_is_refused_by_a_chip_without_them() -> None:
    with pytest.raises(ConfigError, match=r"^precision=stored: expected one of bf16, fp8 for"):
        model_at("stored", MODEL, CHIPS["trainium2"])
    with pytest.raises(ConfigError, match=r"^precision=mxfp4: "):
        model_at("mxfp4", MODEL, CHIPS["trainium2"])
    assert model_at("stored", MODEL, CHIPS["trainium3"]) is MODEL


def test_each_precision_takes_fewer_bytes_than_the_wider_one() -> None:
    model = MODELS["gpt-oss-120b"]
    sizes = [
        model_at(name, model, CHIPS["trainium3"]).weight_bytes for name in ("bf16", "fp8", "mxfp4")
    ]

    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_a_sweep_refuses_what_its_chip_has_not() -> None:
    with pytest.raises(ConfigError, match="nvfp4"):
        Sweep(
            system=trays(1),
            model=MODEL,
            shape=SHAPE,
            precisions=("nvfp4",),
            assumptions=StepAssumptions(calibration=ROOFLINE),
        )
    with pytest.raises(ConfigError, match="batch=0"):
        Sweep(
            system=trays(1),
            model=MODEL,
            shape=SHAPE,
            batches=(0,),
            assumptions=StepAssumptions(calibration=ROOFLINE),
        )
    with pytest.raises(ConfigError, match="routing=zipf:x"):
        Sweep(
            system=trays(1),
            model=MODEL,
            shape=SHAPE,
            routing="zipf:x",
            assumptions=StepAssumptions(calibration=ROOFLINE),
        )


def test_a_sweep_in_which_no_batch_fits_names_those_it_was_asked_for() -> None:
    none_fits = replace(SHAPE, batched_tokens_max=1)
    for batches, said in (((), "batch=any"), ((1, 8), "batch=1,8")):
        sweep = Sweep(
            system=trays(1),
            model=MODEL,
            shape=none_fits,
            batches=batches,
            assumptions=StepAssumptions(calibration=ROOFLINE),
        )
        with pytest.raises(ConfigError, match=said):
            operating_points(sweep)
