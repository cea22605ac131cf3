"""The night's weights on their way to the engine: once, and again when it refused them for now."""

import asyncio
import shutil
from pathlib import Path

import pytest

from emulator.errors import CheckpointError
from serving.policy.day_night.handover import HandoverLimits
from serving.server.day_night.publisher import Publisher
from serving.wire.control_call import PublishRequest
from tests.serving.server.day_night.lending_engine import LendingEngine, a_settings
from tests.serving.server.day_night.test_publish_candidate import STATUS, a_checkpoint

LIMITS = HandoverLimits(backoff_s=10.0)


def given(lender: LendingEngine) -> int:
    return sum(isinstance(asked, PublishRequest) for asked in lender.asked)


def publish(lender: LendingEngine, publisher: Publisher, *, now_s: float) -> None:
    asyncio.run(publisher.publish(lender.versions, STATUS, now_s))


def test_better_weights_are_given_once(lender: LendingEngine, tmp_path: Path) -> None:
    a_checkpoint(tmp_path, 40)
    publisher = Publisher(lender, a_settings(tmp_path, publish="if-better"), LIMITS)
    publish(lender, publisher, now_s=0.0)
    assert publisher.words == "version 2: step 40, held-out loss 3.0000 nats"
    assert lender.versions[-1].note == "step 40, held-out loss 3.0000 nats"
    publish(lender, publisher, now_s=1.0)
    assert publisher.words == "the checkpoint of step 40 has been published"
    assert given(lender) == 1


def test_what_is_refused_is_tried_again_after_a_wait(lender: LendingEngine, tmp_path: Path) -> None:
    publisher = Publisher(lender, a_settings(tmp_path, publish="if-better"), LIMITS)
    publish(lender, publisher, now_s=0.0)  # there is nothing on the disk
    assert publisher.words.startswith("step 40 was refused: ")
    a_checkpoint(tmp_path, 40)
    publish(lender, publisher, now_s=9.9)
    assert given(lender) == 0
    publish(lender, publisher, now_s=10.0)
    assert given(lender) == 1


def test_nothing_is_given_that_nobody_wants(lender: LendingEngine, tmp_path: Path) -> None:
    a_checkpoint(tmp_path, 40)
    publisher = Publisher(lender, a_settings(tmp_path, publish="never"), LIMITS)
    publish(lender, publisher, now_s=0.0)
    assert (publisher.words, given(lender)) == ("", 0)


def test_a_checkpoint_of_the_job_s_is_kept_from_it(lender: LendingEngine, tmp_path: Path) -> None:
    found = a_checkpoint(tmp_path, 40)
    publisher = Publisher(lender, a_settings(tmp_path), LIMITS)
    kept = Path(asyncio.run(publisher.kept(str(found.directory), lender.versions)))
    assert kept == tmp_path / "published" / "step-40"
    shutil.rmtree(found.directory)  # as the job does with old ones
    assert (kept / "model.safetensors").read_bytes() == b"w" * 40
    elsewhere = asyncio.run(publisher.kept("/elsewhere", lender.versions))
    assert elsewhere == "/elsewhere"
    with pytest.raises(CheckpointError):
        asyncio.run(publisher.kept(str(found.directory), lender.versions))
