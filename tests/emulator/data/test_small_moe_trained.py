"""The trained weights that ship: what they are, how they were made, and that they have learned."""

import hashlib
import json
import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3MoeForCausalLM

from emulator.data import SMALL_MOE_DIR, SMALL_MOE_TRAINED_DIR, weights_directory, weights_name
from serving.server.training.corpus import default_corpus, read_corpus

LARGEST_BYTES = 8_000_000
WINDOW_TOKENS = 256
WINDOWS = 24


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    text = (SMALL_MOE_TRAINED_DIR / "training.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@pytest.fixture(scope="module")
def model() -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(SMALL_MOE_TRAINED_DIR, dtype=torch.float32).eval()


def test_the_weights_are_those_that_the_record_is_of(record: dict[str, Any]) -> None:
    content = (SMALL_MOE_TRAINED_DIR / "model.safetensors").read_bytes()

    assert hashlib.sha256(content).hexdigest() == record["model_sha256"]
    assert len(content) <= LARGEST_BYTES


def test_architecture_and_tokenizer_are_those_of_the_random_weights() -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (SMALL_MOE_TRAINED_DIR / name).read_bytes() == (SMALL_MOE_DIR / name).read_bytes()


def test_the_record_tells_a_falling_curve_that_ends_below_two_and_a_half_bits(
    record: dict[str, Any],
) -> None:
    held_out = [point["held_out_nats"] for point in record["curve"] if point["held_out_nats"]]

    assert record["command"].startswith("ultraserve train ")
    assert len(record["corpus"]["sha256"]) == 64
    assert held_out[-1] < held_out[0] / 2
    assert record["held_out"]["bits_per_byte"] < 2.5
    assert record["held_out"]["bits_per_byte"] < record["held_out"]["gzip_9_bits_per_byte"]


@pytest.mark.slow
def test_unseen_files_of_this_python_take_less_than_two_and_a_half_bits_a_byte(
    model: Qwen3MoeForCausalLM,
) -> None:
    tokenizer = Tokenizer.from_file(str(SMALL_MOE_TRAINED_DIR / "tokenizer.json"))
    # A file that spells a special token is read as that token by this encoder: leave it out.
    files = [
        text
        for f in read_corpus(default_corpus()).held_out
        if "<|" not in (text := f.content.decode())
    ]
    nats, text_bytes = 0.0, 0
    for text in files[:: max(1, len(files) // WINDOWS)]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids[: WINDOW_TOKENS + 1]
        if len(ids) < WINDOW_TOKENS:
            continue
        row = torch.tensor([ids])
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(
                model(row).logits[0, :-1], row[0, 1:], reduction="sum"
            )
        nats += float(loss)
        text_bytes += len(tokenizer.decode(ids[1:], skip_special_tokens=False).encode())

    assert text_bytes > 5_000
    assert nats / math.log(2) / text_bytes < 2.5


def test_bundled_weights_go_by_their_names() -> None:
    assert weights_directory("small-moe-trained") == SMALL_MOE_TRAINED_DIR
    assert weights_name(SMALL_MOE_TRAINED_DIR) == "small-moe-trained"
    assert weights_name(SMALL_MOE_DIR / "..") == "data"
