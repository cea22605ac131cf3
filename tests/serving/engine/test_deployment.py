"""What fits together: chips, ranks, heads, experts, routing; and where experts lie at first."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError, ConfigError, HbmExhausted
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.models import MODELS
from emulator.specs.placement import EMPTY
from emulator.specs.weight_format import WeightFormat
from serving.engine.deployment import Deployment, resolve_deployment
from serving.settings import Settings
from tests.emulator.chip.stored_checkpoints import with_dtype
from tests.emulator.ultraserver.tiny_steps import same_on_each

QWEN = "qwen3-30b-a3b"
CONTEXT_BYTES = 4 * 2 * 4 * 16  # layers x K and V x heads x head size of the small MoE, in elements


def resolved(**given: Any) -> Deployment:
    return resolve_deployment(Settings(**given), SMALL_MOE_DIR)


def test_by_default_four_chips_are_four_ranks_of_the_bundled_model() -> None:
    deployment = resolved()

    assert deployment.info() == {
        "system": "trn3-nl72x2",
        "ultraserver": "0",
        "chips": "4",
        "tp": "1",
        "dp": "4",
        "ep": "4",
        "lnc": "2",
        "attention_split": "heads",
        "time_model": "small-moe",
        "weights": "small-moe",
        "routing": "computed",
        "clock": "auto",
        "calibration": "fitted",
        "overlap": "none",
    }
    assert deployment.time_model is deployment.weights
    assert deployment.weights_kv_bytes_per_token == 4 * CONTEXT_BYTES  # FP32


def test_a_catalog_model_is_timed_on_stand_in_weights() -> None:
    deployment = resolved(model=QWEN, chips=16, tp=2, ep=8, lnc=1, spares=3, first_chip=5)

    partition = deployment.partition
    assert (partition.ranks, partition.ep, partition.lnc) == (8, 8, 1)
    assert (partition.first_chip, partition.spares) == (5, 3)
    assert deployment.time_model.name == QWEN
    assert deployment.weights.name == deployment.weights_name == "small-moe"
    assert deployment.routing == "uniform (expected)"


def test_tokens_are_computed_in_float32_unless_formats_are_asked_for() -> None:
    assert resolved().formats == resolved(model=QWEN).formats == FP32_MODEL


def test_an_fp16_checkpoint_is_not_computed_as_stored_and_can_be_timed_so(tmp_path: Path) -> None:
    directory = with_dtype("float16", SMALL_MOE_DIR, tmp_path)

    with pytest.raises(ConfigError, match="quantization=stored: expected bf16, or none: FP16"):
        resolve_deployment(Settings(quantization="stored"), directory)

    assert resolve_deployment(Settings(), directory).formats == FP32_MODEL
    timed = resolve_deployment(Settings(quantization="stored", computes=False), directory)
    assert timed.time_model.dtype == "bf16"


def test_one_name_sets_the_formats_of_time_memory_and_products() -> None:
    plain, narrow = resolved(), resolved(quantization="mxfp4", kv_cache_dtype="fp8")

    assert narrow.time_model is narrow.weights
    assert narrow.weights == plain.weights.at_precision("mxfp4", kv_bytes_per_element=1)
    assert narrow.formats == ModelFormats.of_model(narrow.weights)
    assert narrow.weights_kv_bytes_per_token == plain.weights_kv_bytes_per_token  # on the host
    machines = narrow.machine(0.9), plain.machine(0.9)
    free, used = (each.kv_tokens_per_rank for each in machines)
    assert free > 2 * used
    quick, slow = (each.costing().cost(same_on_each(4, 16, 1, 400)) for each in machines)
    assert quick.duration_ns < slow.duration_ns
    assert quick.chip_joules < slow.chip_joules


def test_a_stand_in_computes_in_the_formats_that_the_catalog_model_is_timed_in() -> None:
    deployment = resolved(model=QWEN, quantization="w4a8")

    assert deployment.time_model == MODELS[QWEN].at_precision("w4a8")
    assert deployment.formats == ModelFormats(
        plain=WeightFormat.BF16,
        projections=WeightFormat.MXFP4,
        experts=WeightFormat.MXFP4,
        kv_bytes_per_element=2,
    )


def test_a_cache_in_fp8_alone_leaves_products_in_float32() -> None:
    deployment = resolved(kv_cache_dtype="fp8")

    assert deployment.formats == ModelFormats(kv_bytes_per_element=1)
    assert deployment.time_model.kv_bytes_per_element == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantization": "nvfp4"}, "quantization=nvfp4: .*NVFP4 has an E4M3 scale for every 16"),
        ({"quantization": "int8"}, "quantization=int8: expected one of bf16, fp8, mxfp4, mxfp8"),
        ({"quantization": "fp8", "system": "trn2-ultraserver"}, "quantization=fp8: .*Trainium3"),
        ({"quantization": 8}, "quantization=8: expected a format's name"),
        ({"kv_cache_dtype": "int8"}, "kv-cache-dtype=int8: expected auto or bf16 or fp8"),
    ],
)
def test_formats_that_are_not_computed_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(**given)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("dp", [1, 2, 36])
def test_the_bundled_model_s_four_head_groups_divide_over_1_2_or_4_chips(tp: int, dp: int) -> None:
    partition = resolved(chips=tp * dp, tp=tp).partition

    assert (partition.ranks, partition.tp, partition.ep) == (dp, tp, tp * dp)


@pytest.mark.long
@pytest.mark.parametrize("chips", range(1, 145))
def test_every_number_of_chips_of_an_ultraserver_serves_the_bundled_model(chips: int) -> None:
    deployment = resolved(chips=chips)
    placement = deployment.placement_of(deployment.weights)

    assert placement.missing() == []
    assert placement.slots == -(-144 // chips)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"chips": 8, "tp": 8},
            "tp=8: expected a divisor of the 4 head groups (8 heads) of small-moe: "
            "1, 2, 4 would fit on 8 chips",
        ),
        (
            {"chips": 6, "tp": 3, "model": QWEN, "computes": False},
            "tp=3: expected a divisor of the 32 head groups (32 heads) of qwen3-30b-a3b: "
            "1, 2 would fit on 6 chips",
        ),
        (
            {"chips": 4, "tp": 3},
            "tp=3: expected chips = tp x dp, so tp divides the 4 chips: 1, 2, 4 would fit",
        ),
        (
            {"chips": 6, "ep": 4},
            "ep=4: expected experts lie on whole groups of ep chips, so ep divides the 6 chips: "
            "1, 2, 3, 6 would fit",
        ),
        (
            {"chips": 145},
            "chips=145: expected at most 144, of the 144 chips of trn3-nl72x2 from chip 0 on",
        ),
        (
            {"chips": 100, "first_chip": 40, "spares": 8},
            "chips=100: expected at most 96, of the 144 chips of trn3-nl72x2 from chip 40 on "
            "with 8 spares",
        ),
        ({"lnc": 4}, "lnc=4: expected "),
        ({"model": "gpt-unknown"}, "model=gpt-unknown: expected "),
        ({"system": "trn9"}, "system=trn9: expected "),
        ({"prefill_policy": "hasty"}, "prefill_policy=hasty: expected none, staggered:RANKS"),
        (
            {"routing": "zipf:1"},
            "routing=zipf:1: expected a catalog model or no weights with it",
        ),
        ({"model": QWEN, "routing": "zipf:x"}, "routing=zipf:x: expected zipf:S with S from 0"),
        ({"model": QWEN, "routing": "loads.csv"}, "routing=loads.csv: expected a file that can"),
        ({"eplb": {"step": 1}}, "eplb-config=step: expected one of window_size, "),
        (
            {"eplb": {"step_interval": 0}},
            "eplb-config.step_interval=0: expected a whole number of at least 1",
        ),
        (
            {"chips": 10, "eplb": {"num_redundant_experts": 5}},
            "eplb-config.num_redundant_experts=5: expected 6, so that 144 experts",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_rule_and_what_would(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolved(**wrong)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("computes", [True, False])
def test_a_timed_model_s_key_and_value_heads_may_be_fewer_than_a_rank_s_chips(
    computes: bool,
) -> None:
    # Qwen3-30B-A3B has 32 query heads and 4 of keys and values, and so has its stand-in.
    assert resolved(chips=32, tp=32, model=QWEN, computes=computes).partition.ranks == 1
    with pytest.raises(ConfigError, match="32 head groups"):
        resolved(chips=64, tp=64, model=QWEN, computes=computes)


@pytest.mark.parametrize(
    ("chosen", "routing"),
    [
        ({}, "computed"),
        ({"computes": False}, "uniform (expected)"),
        ({"computes": False, "routing": "zipf:1.5"}, "zipf:1.5 (seed 0) (expected)"),
        ({"model": QWEN}, "uniform (expected)"),
        ({"model": QWEN, "routing": "zipf:1"}, "zipf:1 (seed 0) (expected)"),
        ({"model": "llama-3.1-8b"}, "none (dense)"),
    ],
)
def test_reports_say_where_tokens_go(chosen: dict[str, Any], routing: str) -> None:
    assert resolved(**chosen).routing == routing


def test_recorded_loads_route_as_their_file_says(tmp_path: Path) -> None:
    model = MODELS[QWEN]
    loads = np.ones((model.moe_layers, model.experts))
    loads[:, 0] = 4
    path = tmp_path / "loads.json"
    path.write_text(json.dumps({"model": QWEN, "loads": loads.tolist()}))
    deployment = resolved(model=QWEN, routing=str(path))

    assert deployment.routing == "recorded:loads.json (expected)"
    assert deployment.distribution is not None
    chance = deployment.distribution.probability
    assert chance[:, 0] == pytest.approx(4 * chance[:, 1])


def test_without_weights_the_tokens_are_made_up_and_said_to_be() -> None:
    assert resolved(computes=False).weights_name == "none (made up)"


@pytest.mark.parametrize("computes", [True, False])
def test_a_directory_without_a_config_is_no_checkpoint(computes: bool, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint directory"):
        resolve_deployment(Settings(computes=computes), tmp_path)


def test_a_checkpoint_is_needed_only_where_tokens_are_computed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((SMALL_MOE_DIR / "config.json").read_bytes())

    assert resolve_deployment(Settings(computes=False), tmp_path).weights.name == tmp_path.name
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        resolve_deployment(Settings(), tmp_path)


def test_without_balancing_experts_lie_evenly_in_order() -> None:
    deployment = resolved(chips=8, ep=4)
    slots = deployment.placement_of(deployment.weights).expert_of_slot

    assert slots.shape == (4, 8, 36)
    assert slots[0, 1].tolist() == list(range(36, 72))
    assert (slots[:, 4:] == slots[:, :4]).all()


def test_balancing_fills_the_chips_up_with_copies_by_default() -> None:
    # 144 experts on 10 chips: 6 copies make 15 on each.
    deployment = resolved(chips=10, eplb={})
    placement = deployment.placement_of(deployment.weights)

    assert deployment.eplb is not None
    assert deployment.eplb.num_redundant_experts == 6
    assert placement.slots == 15
    assert placement.missing() == []
    assert (placement.expert_of_slot != EMPTY).all()


def test_copies_are_as_many_as_asked_for() -> None:
    deployment = resolved(chips=4, eplb={"num_redundant_experts": 16})
    placement = deployment.placement_of(deployment.weights)

    assert placement.slots == 40
    assert placement.copies().sum(axis=2).tolist() == [[160] * 4]


@pytest.mark.long
@given(
    chips=st.integers(1, 144),
    copies=st.none() | st.integers(0, 200),
    model=st.sampled_from([None, QWEN, "gpt-oss-120b", "llama-3.1-8b"]),
)
def test_what_is_resolved_has_a_slot_for_every_expert_of_both_models(
    chips: int, copies: int | None, model: str | None
) -> None:
    eplb = {} if copies is None else {"num_redundant_experts": copies}
    experts = (MODELS[model].experts if model else 0) or 144
    if copies is not None and (experts + copies) % chips:
        with pytest.raises(ConfigError, match=r"^eplb-config\.num_redundant_experts="):
            resolved(chips=chips, model=model, eplb=eplb)
        return
    deployment = resolved(chips=chips, model=model, eplb=eplb)
    for each in (deployment.time_model, deployment.weights):
        placement = deployment.placement_of(each)
        assert (placement.layers, placement.experts) == (each.moe_layers, each.experts)
        assert placement.missing() == []


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_of_the_catalog_fits_on_the_whole_machine(model: str) -> None:
    deployment = resolved(model=model, chips=144, tp=16, ep=72, computes=False)

    assert deployment.machine(0.92).kv_tokens_per_rank > deployment.time_model.max_context_tokens


def test_the_user_s_share_of_hbm_and_hang_timeout_reach_the_machine() -> None:
    deployment = resolved(model=QWEN, chips=4, hang_timeout_s=2.5)

    half, most = (deployment.machine(share).kv_tokens_per_rank for share in (0.5, 0.9))
    # 40 % of four 36 GiB stacks, over the bytes of a token.
    gained_bytes = 0.4 * 4 * 36 * 2**30
    assert (most - half) * deployment.time_model.kv_bytes_per_token == pytest.approx(
        gained_bytes, rel=1e-4
    )
    assert deployment.machine(0.5)._rates.hang_ns.value == 2.5e9
    with pytest.raises(HbmExhausted):
        deployment.machine(0.1)
