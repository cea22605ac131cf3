"""BF16 bytes against PyTorch's, and the file against the safetensors library."""

from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from emulator.data.bfloat16_checkpoint import bfloat16_bytes, safetensors_bytes


def as_bits(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(bfloat16_bytes(values.astype(np.float32)), dtype="<u2")


def test_ties_go_to_the_even_neighbour() -> None:
    one, step = 0x3F80, 2.0**-7

    assert as_bits(np.array([1.0, 1 + step / 2, 1 + step, 1 + 1.5 * step])).tolist() == [
        one,
        one,
        one + 1,
        one + 2,
    ]


def test_every_finite_bfloat16_is_kept() -> None:
    codes = np.arange(1 << 16, dtype=np.uint32)
    values = (codes << 16).view(np.float32)
    finite = np.isfinite(values)

    np.testing.assert_array_equal(as_bits(values[finite]), codes[finite])


def test_rounding_is_that_of_torch() -> None:
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)

    expected = torch.tensor(values).to(torch.bfloat16).view(torch.uint16).numpy()

    np.testing.assert_array_equal(as_bits(values), expected)


def test_the_library_reads_the_file(tmp_path: Path) -> None:
    tensors = {
        "b": np.array([[1.0, -2.0, 0.5]], dtype=np.float32),
        "a": np.arange(5, dtype=np.float32),
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(tensors))

    with safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == ["a", "b"]
        assert file.metadata() == {"format": "pt"}
        for name, values in tensors.items():
            read = file.get_tensor(name)
            assert read.dtype == torch.bfloat16
            assert read.tolist() == values.tolist()
