"""Text of an engine on chips in a number format is what one process computes in it."""

import numpy as np
import pytest

from emulator.compute.model_spec import model_spec
from emulator.compute.whole_model import WholeModel
from emulator.data import SMALL_MOE_DIR
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from tests.serving.plugin.core_engine import Engine

pytestmark = pytest.mark.long

PROMPTS = {"a": (5, 50), "b": (90, 300), "c": (33, 700)}
"""Tokens of each prompt, and its first one."""


def is_greedy(model: WholeModel, prompt: list[int], text: list[int]) -> bool:
    """Whether each token of `text` is the most likely one after what is before it."""
    (scores,) = model.logits(np.array([prompt + text[:-1]]))
    return scores[len(prompt) - 1 :].argmax(axis=1).tolist() == text


def test_greedy_text_is_that_of_the_format_and_not_of_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = model_spec("small", SMALL_MOE_DIR).at_precision("mxfp4", kv_bytes_per_element=1)
    engine = Engine(monkeypatch, 4, tp=2, quantization="mxfp4", kv_cache_dtype="fp8")
    for name, (tokens, first) in PROMPTS.items():
        engine.add(name, tokens, first=first, max_tokens=24)
    texts = engine.serve({})

    quantised = WholeModel(SMALL_MOE_DIR, ModelFormats.of_model(spec))
    plain = WholeModel(SMALL_MOE_DIR, FP32_MODEL)
    both = {name: (list(range(at, at + n)), texts[name]) for name, (n, at) in PROMPTS.items()}
    assert all(len(text) == 24 for text in texts.values())
    assert all(is_greedy(quantised, *each) for each in both.values())
    assert not all(is_greedy(plain, *each) for each in both.values())
