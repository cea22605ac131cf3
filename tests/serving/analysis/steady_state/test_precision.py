from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.chips import CHIPS
from emulator.specs.models import MODELS
from emulator.specs.precisions import (
    kv_dtype,
    model_at,
    precisions_of,
    with_kv_dtype,
)
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


def test_matrices_in_mx_blocks_are_served_where_named_by_chips_that_multiply_them() -> None:
    for name in ("mxfp8", "mxfp4", "w4a8"):
        assert model_at(name, DENSE, CHIPS["trainium3"]) == DENSE.at_precision(name)
        with pytest.raises(ConfigError, match=rf"^precision={name}: expected one of bf16, fp8 for"):
            model_at(name, DENSE, CHIPS["trainium2"])


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


def test_kv_of_eight_bits_takes_half_the_bytes_whatever_the_weights() -> None:
    chip = CHIPS["trainium3"]
    narrow = with_kv_dtype("fp8", MODEL, chip)

    assert with_kv_dtype("auto", MODEL, chip) is MODEL
    assert (kv_dtype(MODEL), kv_dtype(narrow)) == ("bf16", "fp8")
    assert 2 * narrow.kv_bytes_per_token == MODEL.kv_bytes_per_token
    for precision in precisions_of(chip, MODEL):
        assert kv_dtype(model_at(precision, narrow, chip)) == "fp8"
        assert kv_dtype(model_at(precision, MODEL, chip)) == "bf16"
    with pytest.raises(ConfigError, match="kv-cache-dtype=fp8: expected auto or bf16 on"):
        with_kv_dtype("fp8", MODEL, replace(chip, tensor_fp8_flops_per_s=None))


@pytest.mark.long
def test_kv_of_eight_bits_leaves_room_for_twice_the_tokens_and_is_read_sooner() -> None:
    wide = Sweep(
        system=trays(1, chips_per_tray=4),
        model=MODEL,
        shape=SHAPE,
        precisions=("bf16",),
        assumptions=StepAssumptions(calibration=ROOFLINE),
    )
    narrow = replace(wide, model=with_kv_dtype("fp8", MODEL, wide.system.chip))
    for of_wide, of_narrow in zip(wide.tasks(), narrow.tasks(), strict=True):
        tokens = of_wide[1].kv_capacity_tokens
        assert 2 * tokens <= of_narrow[1].kv_capacity_tokens <= 2 * tokens + 1
        steps = [sweep.replica(*of_wide).decode(64) for sweep in (wide, narrow)]
        assert steps[1].duration_ns < steps[0].duration_ns
