"""Checkpoints whose matrices are stored in FP8 blocks or MXFP4: the values they stand for."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from emulator.compute.checkpoint import check_weights, load_shard
from emulator.compute.mapped_matrix import MappedMatrix, mapped_matrices
from emulator.compute.tensors import Tensors, stored_bytes
from emulator.compute.weights import MoeWeights
from emulator.errors import CheckpointError
from tests.emulator.chip.family_checkpoints import FamilyCheckpoints
from tests.emulator.chip.stored_checkpoints import all_tensors, in_fp8, in_mxfp4, save

BLOCK = 24  # divides no side, so that the last blocks are partial


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("stored"))


def assert_same_shards(one: Path, other: Path) -> None:
    """Also when the first is mapped: products with the unit matrix are its matrices' values."""
    shards = []
    for directory, mapped in ((one, False), (one, True), (other, False)):
        arch = check_weights(directory)
        experts = [list(range(arch.experts))] * len(arch.expert_layers)
        shards.append(load_shard(directory, arch, experts, mapped=mapped))
    mine, mapped, theirs = (torch.utils._pytree.tree_leaves(_fields(shard)) for shard in shards)
    assert len(mine) == len(mapped) == len(theirs) > 20
    assert any(each.dtype == object for each in mapped)
    for packed, stored, expected in zip(mine, mapped, theirs, strict=True):
        assert np.array_equal(packed, expected)
        values = stored
        if stored.dtype == object:
            unit = np.eye(expected.shape[-2], dtype=np.float32)
            values = np.array([matrix.multiply(unit) for matrix in stored])
        assert np.array_equal(values.reshape(expected.shape), expected)


def _fields(node: object) -> object:
    """Arrays of nested dataclasses as a tree."""
    if isinstance(node, np.ndarray):
        return node
    if isinstance(node, MappedMatrix):
        return mapped_matrices([node])
    if isinstance(node, tuple):
        return [_fields(each) for each in node]
    names = getattr(node, "__dataclass_fields__", {})
    return [_fields(getattr(node, n)) for n in names if n not in ("architecture", "groups")]


@pytest.mark.long
def test_fp8_blocks_stand_for_their_codes_times_their_scale(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    assert_same_shards(*in_fp8(checkpoints["deepseek-plain"], tmp_path, BLOCK))


@pytest.mark.long
def test_fp8_without_its_block_size_is_refused(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    source = checkpoints["deepseek-no-dense"]
    tensors = all_tensors(source)
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    directory = save(tmp_path / "fp8", source, tensors, {})

    with pytest.raises(CheckpointError, match=f"{name} is FP8, and config.json has no"):
        check_weights(directory)


@pytest.mark.parametrize(
    ("shape", "words"), [(None, "is missing"), ((2, 5), r"has shape \[2, 5\], config.json asks")]
)
@pytest.mark.parametrize("name", ["self_attn.q_a_proj", "mlp.experts.5.up_proj"])
def test_fp8_without_the_scales_of_its_shape_is_refused(
    name: str,
    shape: tuple[int, int] | None,
    words: str,
    checkpoints: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    stored, _ = in_fp8(checkpoints["deepseek-plain"], tmp_path, BLOCK)
    tensors, scales = all_tensors(stored), f"model.layers.1.{name}.weight_scale_inv"
    del tensors[scales]
    if shape is not None:
        tensors[scales] = torch.ones(shape)
    directory = save(tmp_path / "broken", stored, tensors, {})

    with pytest.raises(CheckpointError, match=f"tensor {scales} {words}"):
        check_weights(directory)


@pytest.mark.long
def test_mxfp4_experts_are_what_transformers_unpacks(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    assert_same_shards(*in_mxfp4(checkpoints["gpt-oss-plain"], tmp_path))


def test_mxfp4_that_config_json_does_not_name_is_refused_and_so_is_what_it_names_and_is_not(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    stored, plain = in_mxfp4(checkpoints["gpt-oss-plain"], tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    unsaid = save(tmp_path / "unsaid", plain, all_tensors(stored), {})
    quantisation = {"quantization_config": {"quant_method": "mxfp4"}}
    unpacked = save(tmp_path / "unpacked", plain, all_tensors(plain), dict(quantisation))

    with pytest.raises(CheckpointError, match=f"{name}_blocks is MXFP4, and config.json has no"):
        check_weights(unsaid)
    with pytest.raises(CheckpointError, match=f"tensor {name}_blocks is missing"):
        check_weights(unpacked)


def test_mxfp4_of_rows_that_end_within_a_block_is_refused(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    stored, _ = in_mxfp4(checkpoints["gpt-oss-plain"], tmp_path)
    tensors = Tensors(stored)
    name = "model.layers.0.mlp.experts.down_proj"
    tensors.check_mxfp4(name, 8, 64, 32)

    with pytest.raises(
        CheckpointError, match=f"{name}_blocks is MXFP4, in blocks of 32 .* asks 40"
    ):
        tensors.check_mxfp4(name, 8, 64, 40)


def test_only_the_files_of_the_index_are_a_checkpoints_bytes(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(checkpoints["llama-plain"], tmp_path / "copy"))
    files = sorted(directory.glob("*.safetensors"))
    assert len(files) > 1
    held = sum(path.stat().st_size for path in files)

    shutil.copy(files[0], directory / "consolidated.safetensors")

    assert stored_bytes(directory) == held
    files[1].unlink()
    with pytest.raises(CheckpointError, match=files[1].name):
        stored_bytes(directory)


def test_gate_and_up_columns_that_alternate_are_laid_side_by_side(
    checkpoints: Mapping[str, Path],
) -> None:
    source = checkpoints["gpt-oss-plain"]
    tensors = all_tensors(source)
    arch = check_weights(source)
    shard = load_shard(source, arch, [[3]] * 4)

    moe = shard.layers[2].feed_forward
    assert isinstance(moe, MoeWeights)
    stored = tensors["model.layers.2.mlp.experts.gate_up_proj"][3].numpy()
    width = arch.expert_intermediate
    assert (moe.experts.gate_up[0, :, :width] == stored[:, ::2]).all()
    assert (moe.experts.gate_up[0, :, width:] == stored[:, 1::2]).all()
    biases = tensors["model.layers.2.mlp.experts.gate_up_proj_bias"][3].numpy()
    assert (moe.experts.biases[0, :width] == biases[::2]).all()
