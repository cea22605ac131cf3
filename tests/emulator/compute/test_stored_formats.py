"""Checkpoints whose matrices are stored in FP8 blocks or MXFP4: the values they stand for."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from emulator.compute.checkpoint import check_weights, load_shard
from emulator.compute.weights import MoeWeights
from emulator.errors import CheckpointError
from tests.emulator.chip.family_checkpoints import FamilyCheckpoints

BLOCK = 24  # divides no side, so that the last blocks are partial


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("stored"))


def all_tensors(directory: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def save(
    directory: Path, source: Path, tensors: dict[str, torch.Tensor], more: dict[str, object]
) -> Path:
    directory.mkdir()
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | more))
    save_file(
        {name: each.contiguous() for name, each in tensors.items()},
        directory / "model.safetensors",
    )
    return directory


def assert_same_shards(one: Path, other: Path) -> None:
    shards = []
    for directory in (one, other):
        arch = check_weights(directory)
        experts = [list(range(arch.experts))] * len(arch.expert_layers)
        shards.append(load_shard(directory, arch, experts))
    flat = [torch.utils._pytree.tree_leaves(_fields(shard)) for shard in shards]
    assert len(flat[0]) == len(flat[1]) > 20
    for mine, theirs in zip(*flat, strict=True):
        assert np.array_equal(mine, theirs)


def _fields(node: object) -> object:
    """Arrays of nested dataclasses as a tree."""
    if isinstance(node, np.ndarray):
        return node
    if isinstance(node, tuple):
        return [_fields(each) for each in node]
    names = getattr(node, "__dataclass_fields__", {})
    return [_fields(getattr(node, n)) for n in names if n not in ("architecture", "groups")]


def test_fp8_blocks_stand_for_their_codes_times_their_scale(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    source = checkpoints["deepseek-plain"]
    plain, stored = {}, {}
    for name, tensor in all_tensors(source).items():
        is_quantised = tensor.ndim == 2 and "embed" not in name and "lm_head" not in name
        if not is_quantised or name.endswith("mlp.gate.weight"):
            plain[name] = stored[name] = tensor
            continue
        rows, columns = (-(-side // BLOCK) for side in tensor.shape)
        scales = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) + 0.01
        codes = (tensor * 100).to(torch.float8_e4m3fn)
        stored[name], stored[f"{name}_scale_inv"] = codes, scales
        plain[name] = codes.float().clone()
        for row in range(rows):  # the obvious way
            for column in range(columns):
                block = np.s_[
                    row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK
                ]
                plain[name][block] *= scales[row, column]
    quantisation = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    fp8 = save(tmp_path / "fp8", source, stored, {"quantization_config": quantisation})

    assert_same_shards(fp8, save(tmp_path / "plain", source, plain, {}))


def test_fp8_without_its_block_size_is_refused(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    source = checkpoints["deepseek-no-dense"]
    tensors = all_tensors(source)
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    directory = save(tmp_path / "fp8", source, tensors, {})
    arch = check_weights(directory)

    with pytest.raises(CheckpointError, match=f"{name} is FP8, and config.json has no"):
        load_shard(directory, arch, [[0]] * len(arch.expert_layers))


def test_mxfp4_experts_are_what_transformers_unpacks(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    source = checkpoints["gpt-oss-plain"]
    generator = torch.Generator().manual_seed(0)
    plain, stored = {}, {}
    for name, tensor in all_tensors(source).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            plain[name] = stored[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 130, shape, generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    more = {"quantization_config": {"quant_method": "mxfp4"}}
    packed = save(tmp_path / "packed", source, stored, more)

    assert_same_shards(packed, save(tmp_path / "plain", source, plain, {}))


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
