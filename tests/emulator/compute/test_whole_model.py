"""A whole model in one process computes the bits that chips do."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from emulator.compute import tensors
from emulator.compute.mapped_matrix import MappedMatrix
from emulator.compute.model_spec import model_spec
from emulator.compute.whole_model import WholeModel
from emulator.data import SMALL_MOE_TRAINED_DIR
from emulator.errors import CheckpointError
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.formats.product_formats import ProductFormat, product_format
from emulator.specs.weight_format import WeightFormat
from tests.emulator.chip.in_process import InProcessChips, serve


def formats_at(precision: str) -> ModelFormats:
    if precision == "fp32":
        return FP32_MODEL
    spec = model_spec("small", SMALL_MOE_TRAINED_DIR)
    return ModelFormats.of_model(spec.at_precision(precision, kv_bytes_per_element=1))


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "mxfp4"])
def test_logits_have_the_bits_of_chips(precision: str) -> None:
    formats = formats_at(precision)
    texts = np.random.default_rng(1).integers(0, 1024, (2, 150))
    machine = InProcessChips(SMALL_MOE_TRAINED_DIR, chips=2, formats=formats)
    serve(machine, {"a": texts[0].tolist(), "b": texts[1].tolist()}, new_tokens=1)

    first, second = WholeModel(SMALL_MOE_TRAINED_DIR, formats).logits(texts)

    assert (first == machine.rows("a")).all()
    assert (second == machine.rows("b")).all()


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "mxfp4"])
def test_a_large_checkpoints_matrices_stay_in_its_pages_where_those_of_chips_do(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", 0)
    formats = formats_at(precision)
    text = np.random.default_rng(1).integers(0, 1024, 150)
    mapped = precision == "fp32"
    machine = InProcessChips(SMALL_MOE_TRAINED_DIR, chips=1, mapped=mapped, formats=formats)
    serve(machine, {"a": text.tolist()}, new_tokens=1)
    multiply, multiplied = MappedMatrix.multiply, []

    def recorded(self: MappedMatrix, *arguments: Any) -> np.ndarray:
        multiplied.append(self)
        return multiply(self, *arguments)

    monkeypatch.setattr(MappedMatrix, "multiply", recorded)
    (scores,) = WholeModel(SMALL_MOE_TRAINED_DIR, formats).logits(text[None])

    assert (scores == machine.rows("a")).all()
    assert bool(multiplied) is mapped


def test_a_model_that_does_not_fit_this_host_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000_000))

    with pytest.raises(CheckpointError, match=r"0\.01 GB of this host's memory are available"):
        WholeModel(SMALL_MOE_TRAINED_DIR, FP32_MODEL)


@pytest.mark.long
def test_each_matrix_is_multiplied_in_its_own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = ModelFormats(
        plain=WeightFormat.BF16, projections=WeightFormat.MXFP8, experts=WeightFormat.MXFP4
    )
    multiply, seen = ProductFormat.multiply, {}

    def recorded(self: ProductFormat, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        seen.setdefault(weights.shape[-2:], []).append(self)
        return multiply(self, rows, weights)

    monkeypatch.setattr(ProductFormat, "multiply", recorded)
    list(WholeModel(SMALL_MOE_TRAINED_DIR, formats).logits(np.arange(300, 320)[None]))

    found = {shape: set(map(id, products)) for shape, products in seen.items()}
    assert found == {
        shape: {id(product_format(storage))}
        for shape, storage in {
            (112, 64): formats.projections,  # queries, key and value of a head group
            (32, 112): formats.projections,  # its output
            (112, 144): formats.plain,  # router
            (112, 32): formats.experts,  # gate and up
            (16, 112): formats.experts,  # down
            (112, 1024): formats.plain,  # LM head
        }.items()
    }
