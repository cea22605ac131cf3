"""A whole model in one process computes the bits that chips do."""

import numpy as np
import pytest

from emulator.compute.model_spec import model_spec
from emulator.compute.whole_model import WholeModel
from emulator.data import SMALL_MOE_TRAINED_DIR
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
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
