"""What was trained is served: chips that serve give a text the loss that training gives it."""

from pathlib import Path

import numpy as np
import pytest

from emulator.compute.mixed_precision import Precision
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.in_process_training import started
from tests.serving.server.training.tiny_job import Job, tiny_spec

pytestmark = pytest.mark.long


def test_serving_chips_give_a_text_the_loss_that_training_chips_give_it(tmp_path: Path) -> None:
    job = Job(tiny_spec(tmp_path, steps=4), tmp_path / "job")
    job.run()
    checkpoint = tmp_path / "job" / "checkpoints" / "step-4"
    text = np.random.default_rng(0).integers(300, 1024, 40).astype(np.int32)

    chips = InProcessChips(checkpoint, chips=2)
    serve(chips, {"text": text.tolist()}, new_tokens=1)
    logits = chips.rows("text")[:-1].astype(np.float64)  # [39, vocab]
    total = np.log(np.exp(logits).sum(axis=1))
    served = total - logits[np.arange(39), text[1:]]

    trainer = started(checkpoint, chips=2, precision=Precision.FP32)
    found = trainer.evaluate([[(text[None, :-1], text[None, 1:])]])

    assert found.counted == 39
    assert found.loss == pytest.approx(served.mean(), rel=1e-5)
