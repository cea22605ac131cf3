import gzip
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from emulator.training_fleet import Micro
from emulator.ultraserver.training_lockstep import TrainingResult
from serving.server.training.batch_order import IGNORED
from serving.server.training.corpus import CorpusFile
from serving.server.training.evaluation import HeldOutLoss, HeldOutText, gzip_sizes


def test_a_bit_a_byte_is_what_ln_2_nats_a_token_of_one_byte_are() -> None:
    loss = HeldOutLoss(nats=10 * math.log(2) * 3, tokens=10, bytes_per_token=1.5)

    assert loss.nats_per_token == pytest.approx(3 * math.log(2))
    assert loss.bits_per_byte == pytest.approx(2.0)


def known_loss(micros: Sequence[Micro]) -> TrainingResult:
    """A model that gives every token as many nats as its number."""
    targets = np.concatenate([part.ravel() for micro in micros for _, part in micro])
    asked = targets[targets != IGNORED]
    return TrainingResult(
        loss=float(asked.mean()), counted=len(asked), balance=0, gradient_norm=0, imbalance=1
    )


@pytest.mark.parametrize("chips", [1, 2, 3])
@pytest.mark.parametrize("at_once", [1, 2, 50])
@pytest.mark.parametrize("stride", [4, 8])
def test_the_whole_text_costs_the_sum_of_its_tokens_however_it_is_dealt(
    chips: int, at_once: int, stride: int
) -> None:
    tokens = np.arange(61)
    text = HeldOutText(tokens, text_bytes=120, length=8)

    loss = text.loss(text.whole(stride=stride), known_loss, chips=chips, at_once=at_once)

    assert loss.tokens == 60
    assert loss.nats == pytest.approx(tokens[1:].sum())
    assert loss.bits_per_byte == pytest.approx(tokens[1:].sum() / math.log(2) / 120)


def test_the_sample_is_always_the_same_windows_spread_over_the_text() -> None:
    text = HeldOutText(np.arange(1001), text_bytes=1, length=10)

    first = text.sample(4).tokens[:, 0]

    assert first.tolist() == [0, 250, 500, 750]
    assert np.array_equal(first, text.sample(4).tokens[:, 0])
    assert len(text.sample(10_000).tokens) == 100


@pytest.mark.process
def test_gzip_needs_what_the_program_of_that_name_needs(tmp_path: Path) -> None:
    contents = [bytes(range(256)) * 9, b"to be or not to be\n" * 40]
    files = [CorpusFile(name=f"{n}.py", content=text) for n, text in enumerate(contents)]
    total = sum(map(len, contents))

    sizes = gzip_sizes(files)

    def program(content: bytes) -> int:
        return len(
            subprocess.run(
                ["gzip", "-9", "-c"], input=content, capture_output=True, check=True
            ).stdout
        )

    each = 8 * sum(map(program, contents)) / total
    assert sizes.per_file_bits_per_byte == pytest.approx(each, abs=8 * 4 / total)
    whole = 8 * program(b"".join(contents)) / total
    assert sizes.concatenated_bits_per_byte == pytest.approx(whole, abs=8 * 4 / total)
    assert gzip.decompress(gzip.compress(contents[0], 9)) == contents[0]
