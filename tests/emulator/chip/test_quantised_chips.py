"""Chips with weights, activations and caches in the chip's number formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.chip.chip_share import ChipShare, load_chip, load_slots, renew_chip
from emulator.chip.commands import LoadExperts, LoadWeights, SendExperts
from emulator.chip.effects import CommandDone, ExpertWeights
from emulator.compute.checkpoint import load_experts, load_shard, read_architecture
from emulator.compute.model_spec import model_spec
from emulator.compute.stored_weights import store_shard
from emulator.compute.weights import GroupedQueryWeights, LatentWeights, ModelShard, MoeWeights
from emulator.data import SMALL_MOE_DIR, SMALL_MOE_TRAINED_DIR
from emulator.errors import ConfigError
from emulator.formats.minifloat import BF16
from emulator.formats.model_formats import ModelFormats
from emulator.formats.mx_blocks import MXFP4, MXFP8, MxFormat, ScaleRule, quantise
from emulator.specs.weight_format import WeightFormat
from tests.emulator.chip.family_checkpoints import FamilyCheckpoints
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.stored_checkpoints import in_fp8

PRECISIONS = ("bf16", "fp8", "mxfp8", "mxfp4", "w4a8")


def formats_at(precision: str, *, kv_bytes: int = 2, directory: Path = SMALL_MOE_DIR):
    spec = model_spec("small", directory).at_precision(precision, kv_bytes_per_element=kv_bytes)
    return ModelFormats.of_model(spec)


def is_in(form: MxFormat, matrix: np.ndarray) -> bool:
    blocks = quantise(np.swapaxes(matrix, -1, -2), form, ScaleRule.OCP)
    return bool((np.swapaxes(blocks.numbers(), -1, -2) == matrix).all())


def stored_shard(precision: str) -> ModelShard:
    arch = read_architecture(SMALL_MOE_DIR)
    shard = load_shard(SMALL_MOE_DIR, arch, [[3, 7]] * arch.layers)
    return store_shard(shard, formats_at(precision))


@pytest.mark.long
def test_mxfp4_quantises_experts_alone_and_w4a8_every_matrix_of_a_layer() -> None:
    for precision, four_bit_attention in (("mxfp4", False), ("w4a8", True)):
        layer = stored_shard(precision).layers[0]
        assert isinstance(layer.feed_forward, MoeWeights)
        assert isinstance(layer.attention, GroupedQueryWeights)

        assert is_in(MXFP4, layer.feed_forward.experts.gate_up)
        assert is_in(MXFP4, layer.feed_forward.experts.down)
        assert is_in(MXFP4, layer.attention.qkv) == four_bit_attention
        assert is_in(MXFP4, layer.attention.output) == four_bit_attention
        assert not is_in(MXFP8, layer.feed_forward.router.matrix)


@pytest.mark.parametrize("precision", ["stored", "fp8"])
def test_an_fp8_checkpoint_with_scales_of_powers_of_two_is_not_rounded_again(
    precision: str, tmp_path: Path
) -> None:
    source = FamilyCheckpoints(tmp_path)["deepseek-plain"]
    root = tmp_path / "stored"
    root.mkdir()
    directory, _ = in_fp8(source, root, 128, powers_of_two=True)
    arch = read_architecture(directory)
    spec = model_spec("fp8", directory)
    if precision != "stored":
        spec = spec.at_precision(precision)
    formats = ModelFormats.of_model(spec)
    assert formats.experts is WeightFormat.FP8_BLOCK128
    share = ChipShare(
        weights_dir=str(directory),
        experts=[[3, 7]] * len(arch.expert_layers),
        kv_blocks=2,
        block_tokens=16,
        formats=formats,
    )
    chip = load_chip(share)
    load_slots(chip, share, LoadExperts(layer=1, slots=[0], experts=[5]))

    found = chip.handle(SendExperts(layer=1, slots=[0, 1]))

    expected = load_experts(directory, arch, 1, [5, 7])
    assert isinstance(found, ExpertWeights)
    assert_saturated_at_most(found.gate_up, expected.gate_up)
    assert_saturated_at_most(found.down, expected.down)
    plain = load_shard(directory, arch, share.experts)
    stored = store_shard(plain, formats)
    assert stored.formats is formats
    attention, as_stored = stored.layers[0].attention, plain.layers[0].attention
    assert isinstance(attention, LatentWeights)
    assert isinstance(as_stored, LatentWeights)
    assert_saturated_at_most(attention.query_down, as_stored.query_down)


def assert_saturated_at_most(found: Any, expected: Any) -> None:
    """By OCP's rule a block whose largest is 480 times its scale has 448 times in its place."""
    changed = found != expected
    assert changed.mean() < 0.01
    assert (np.abs(np.frexp(expected[changed])[0]) == 480 / 512).all()
    assert (found[changed] == expected[changed] * np.float32(448 / 480)).all()


def test_embedding_and_router_and_lm_head_are_in_bf16_beside_quantised_matrices() -> None:
    shard = stored_shard("mxfp8")
    network = shard.layers[0].feed_forward
    assert isinstance(network, MoeWeights)

    for matrix in (shard.embedding, shard.lm_head, network.router.matrix):
        assert (BF16.rounded(matrix) == matrix).all()


def test_a_model_is_computed_in_the_formats_that_it_is_timed_in() -> None:
    assert formats_at("w4a8", kv_bytes=1) == ModelFormats(
        plain=WeightFormat.BF16,
        projections=WeightFormat.MXFP4,
        experts=WeightFormat.MXFP4,
        kv_bytes_per_element=1,
    )
    with pytest.raises(ConfigError, match="quantization=nvfp4"):
        formats_at("nvfp4")


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
def test_quantised_text_has_the_same_bits_however_chips_divide_it(precision: str) -> None:
    """Also in other chunks, in other batches, and with keys and values in FP8."""
    formats = formats_at(precision, kv_bytes=1)
    rng = np.random.default_rng(7)
    prompts = {f"prompt-{n}": rng.integers(0, 1024, 40 + 7 * n).tolist() for n in range(4)}
    rows = []
    for chips, tp, chunk in ((1, 1, 1000), (4, 2, 23), (4, 4, 1000)):
        machine = InProcessChips(
            SMALL_MOE_TRAINED_DIR, chips=chips, tp=tp, kv_blocks=64, formats=formats
        )
        texts = serve(machine, prompts, new_tokens=4, chunk_tokens=chunk)
        rows.append((texts, [machine.rows(name) for name in prompts]))

    first_texts, first_rows = rows[0]
    for texts, found in rows[1:]:
        assert texts == first_texts
        for ours, first in zip(found, first_rows, strict=True):
            assert (ours == first).all()


@pytest.mark.long
def test_a_cache_in_fp8_changes_logits_and_only_what_attends() -> None:
    prompts = {"prompt": list(range(300, 350))}
    found = []
    for kv_bytes in (2, 1):
        formats = formats_at("bf16", kv_bytes=kv_bytes)
        machine = InProcessChips(SMALL_MOE_TRAINED_DIR, chips=1, formats=formats)
        serve(machine, prompts, new_tokens=1)
        found.append(machine.rows("prompt"))

    assert not (found[0] == found[1]).all()
    assert np.abs(found[0] - found[1]).max() < 0.2 * np.abs(found[0]).max()


class TestLoading:
    SHARE = ChipShare(
        weights_dir=str(SMALL_MOE_DIR),
        experts=[[0, 1]] * 4,
        kv_blocks=4,
        block_tokens=16,
        formats=ModelFormats(
            plain=WeightFormat.BF16, projections=WeightFormat.MXFP8, experts=WeightFormat.MXFP4
        ),
    )

    def test_renewed_weights_and_experts_from_disk_are_quantised_too(self) -> None:
        chip = load_chip(self.SHARE)
        first = chip._experts(0).gate_up.copy()

        renewed = LoadWeights(weights_dir=str(SMALL_MOE_TRAINED_DIR), experts=[[0, 1]] * 4)
        _, answer = renew_chip(chip, self.SHARE, renewed)

        assert isinstance(answer, CommandDone)
        assert is_in(MXFP4, first)
        assert is_in(MXFP4, chip._experts(0).gate_up)
        assert not (chip._experts(0).gate_up == first).all()

        load_slots(chip, self.SHARE, LoadExperts(layer=0, slots=[0], experts=[1]))

        assert (chip._experts(0).gate_up[0] == first[1]).all()
