"""Random checkpoints stored as published ones are: FP8 blocks with scales, MXFP4 experts.

Each comes with the same values stored plainly.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

StoredTensors = dict[str, torch.Tensor]


def all_tensors(directory: Path) -> StoredTensors:
    tensors: StoredTensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def save(directory: Path, source: Path, tensors: StoredTensors, more: dict[str, object]) -> Path:
    """Save `tensors` in `directory` with the config of `source` and what is `more`."""
    directory.mkdir()
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | more))
    save_file(
        {name: each.contiguous() for name, each in tensors.items()},
        directory / "model.safetensors",
    )
    return directory


def in_bf16(source: Path, directory: Path) -> Path:
    """The checkpoint in `source` with all of its float32 tensors in BF16."""
    tensors = {
        name: tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
        for name, tensor in all_tensors(source).items()
    }
    return save(directory, source, tensors, {"dtype": "bfloat16"})


def with_dtype(dtype: str, source: Path, directory: Path) -> Path:
    """The files of `source` in `directory`, where config.json names another `dtype`."""
    for path in source.iterdir():
        (directory / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    return directory


def in_fp8(
    source: Path, root: Path, block: int, *, powers_of_two: bool = False
) -> tuple[Path, Path]:
    """Directories under `root`: DeepSeek's way, in squares of `block`, and plainly.

    Scales are random, or, as DeepSeek-V3.1's, random `powers_of_two`.
    """
    plain: StoredTensors = {}
    stored: StoredTensors = {}
    for name, tensor in all_tensors(source).items():
        is_quantised = tensor.ndim == 2 and "embed" not in name and "lm_head" not in name
        if not is_quantised or name.endswith("mlp.gate.weight"):
            plain[name] = stored[name] = tensor
            continue
        rows, columns = (-(-side // block) for side in tensor.shape)
        generator = torch.Generator().manual_seed(rows)
        scales = (torch.rand(rows, columns, generator=generator) + 0.5) / 100
        if powers_of_two:
            scales = torch.exp2(torch.round(torch.log2(scales)))
        codes = (tensor * 100).to(torch.float8_e4m3fn)
        stored[name], stored[f"{name}_scale_inv"] = codes, scales
        plain[name] = codes.float().clone()
        for row in range(rows):  # the obvious way
            for column in range(columns):
                in_rows = slice(row * block, (row + 1) * block)
                in_columns = slice(column * block, (column + 1) * block)
                plain[name][in_rows, in_columns] *= scales[row, column]
    quantisation = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [block, block],
    }
    more: dict[str, object] = {"quantization_config": quantisation}
    return save(root / "fp8", source, stored, more), save(root / "plain", source, plain, {})


def in_mxfp4(source: Path, root: Path) -> tuple[Path, Path]:
    """Directories under `root`: gpt-oss's way, with random experts, and plainly."""
    generator = torch.Generator().manual_seed(0)
    plain: StoredTensors = {}
    stored: StoredTensors = {}
    for name, tensor in all_tensors(source).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            plain[name] = stored[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 126, shape, generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    more: dict[str, object] = {"quantization_config": {"quant_method": "mxfp4"}}
    return save(root / "mxfp4", source, stored, more), save(root / "plain", source, plain, {})
