"""Text through vLLM itself, on chips in a number format, is what one process computes in it."""

import numpy as np
import pytest

from emulator.compute.model_spec import model_spec
from emulator.compute.whole_model import WholeModel
from emulator.data import SMALL_MOE_TRAINED_DIR
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from tests.e2e.llm_engine import GREEDY, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SETTINGS = {"quantization": "mxfp4", "kv_cache_dtype": "fp8"}


def formats() -> ModelFormats:
    spec = model_spec("small", SMALL_MOE_TRAINED_DIR)
    return ModelFormats.of_model(spec.at_precision("mxfp4", kv_bytes_per_element=1))


def is_greedy(model: WholeModel, prompt: list[int], text: list[int]) -> bool:
    """Whether each token of `text` is the most likely one after what is before it."""
    (scores,) = model.logits(np.array([prompt + text[:-1]]))
    return scores[len(prompt) - 1 :].argmax(axis=1).tolist() == text


def test_greedy_text_is_that_of_the_format_and_not_of_float32() -> None:
    rng = np.random.default_rng(11)
    prompts = [rng.integers(300, 1024, length).tolist() for length in (5, 90, 200, 33)]

    with running_engine(SMALL_MOE_TRAINED_DIR, chips=4, tp=2, settings=SETTINGS) as engine:
        texts = engine.texts(prompts)

    quantised = WholeModel(SMALL_MOE_TRAINED_DIR, formats())
    plain = WholeModel(SMALL_MOE_TRAINED_DIR, FP32_MODEL)
    assert all(len(text) == GREEDY.max_tokens for text in texts)
    assert all(is_greedy(quantised, *each) for each in zip(prompts, texts, strict=True))
    assert not all(is_greedy(plain, *each) for each in zip(prompts, texts, strict=True))
