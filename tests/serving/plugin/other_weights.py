"""Checkpoints of the bundled model's architecture with other weights."""

import hashlib
import json
import shutil
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
from safetensors.numpy import load_file, save_file

from emulator.data import SMALL_MOE_DIR


def other_weights(directory: Path, seed: int) -> Path:
    """Write the bundled model to `directory`, with each tensor's rows in another order."""
    shutil.copytree(SMALL_MOE_DIR, directory)
    random = np.random.default_rng(seed)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file({name: random.permutation(tensor) for name, tensor in tensors.items()}, path)
    return directory


def write_manifest(directory: Path) -> None:
    """Write the hashes of a checkpoint's files beside them."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }
    (directory / "manifest.json").write_text(json.dumps({"sha256": files}))
