"""Which weights a morning serves, and that they stay while the job removes its own."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from emulator.errors import CheckpointError
from serving.server.day_night.publish_candidate import (
    KEPT_MAX,
    Candidate,
    candidate,
    judge,
    keep,
    published_in,
    published_steps,
    served_nats,
)
from serving.server.training.job_status import JobStatus, TrainingPhase
from serving.wire.machine_state import VersionState
from tests.serving.server.day_night.lending_engine import a_version

STATUS = JobStatus(
    phase=TrainingPhase.STOPPED,
    pid=1,
    chips=2,
    step=40,
    steps=1000,
    tokens=4000,
    first_held_out_nats=5.0,
    checkpoint="step-40",
    checkpoint_step=40,
    checkpoint_held_out_nats=3.0,
)


def a_checkpoint(directory: Path, step: int, *, nats: float = 3.0) -> Candidate:
    """A checkpoint as the job writes it, of a few bytes."""
    path = directory / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True)
    state = {"step": step, "tokens": 0, "loss": nats, "held_out_nats": nats} | {
        "first_held_out_nats": 5.0,
        "emulated_ns": 0,
        "joules": 0.0,
        "lag_ns": 0,
        "corpus_sha256": "",
        "seed": 0,
    }
    files = {"model.safetensors": b"w" * step, "training.safetensors": b"m"}
    files["state.json"] = json.dumps(state).encode()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files["manifest.json"] = json.dumps({"sha256": hashes}).encode()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return Candidate(directory=path, step=step, held_out_nats=nats)


def test_the_job_s_newest_checkpoint_is_the_candidate(tmp_path: Path) -> None:
    found = candidate(tmp_path, STATUS)

    assert found is not None
    assert found.directory == tmp_path / "checkpoints" / "step-40"
    assert (found.step, found.held_out_nats) == (40, 3.0)
    assert candidate(tmp_path, None) is None
    assert candidate(tmp_path, replace(STATUS, checkpoint="")) is None
    assert candidate(tmp_path, replace(STATUS, checkpoint_held_out_nats=None)) is None


@pytest.mark.parametrize(
    ("serves", "newest", "words"),
    [
        (3.5, -1, ""),
        (3.0, -1, "step 40 has a held-out loss of 3.0000 nats, what is served 3.0000"),
        (2.9, -1, "what is served 2.9000"),
        (None, -1, "the held-out loss of what is served is not known"),
        (3.5, 40, "the checkpoint of step 40 has been published"),
        (3.5, 39, ""),
    ],
)
def test_only_what_is_better_is_published(
    tmp_path: Path, serves: float | None, newest: int, words: str
) -> None:
    said = judge(candidate(tmp_path, STATUS), serves_nats=serves, newest_step=newest)

    assert said == words if not words else words in said
    assert "no checkpoint" in judge(None, serves_nats=serves, newest_step=newest)


def test_the_loss_of_what_is_served_is_known_of_the_job_s_own(tmp_path: Path) -> None:
    first = Path("/weights")
    kept = keep(tmp_path, a_checkpoint(tmp_path, 7, nats=2.5), served=())

    assert served_nats(tmp_path, first, first=first, status=STATUS) == 5.0
    assert served_nats(tmp_path, first, first=first, status=None) is None
    assert served_nats(tmp_path, kept, first=first, status=STATUS) == 2.5
    assert served_nats(tmp_path, Path("/other"), first=first, status=STATUS) is None


def test_what_is_kept_outlives_the_job_s_own_copy(tmp_path: Path) -> None:
    found = a_checkpoint(tmp_path, 7)
    kept = keep(tmp_path, found, served=())
    shutil.rmtree(found.directory)

    assert (kept / "model.safetensors").read_bytes() == b"w" * 7
    assert keep(tmp_path, found, served=()) == kept  # asked again after a crash


def test_a_damaged_checkpoint_is_not_kept(tmp_path: Path) -> None:
    found = a_checkpoint(tmp_path, 7)
    (found.directory / "model.safetensors").write_bytes(b"x" * 7)

    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        keep(tmp_path, found, served=())
    assert published_steps(tmp_path) == []


def test_the_oldest_go_unless_they_are_served(tmp_path: Path) -> None:
    oldest = keep(tmp_path, a_checkpoint(tmp_path, 1), served=())
    for step in range(2, KEPT_MAX + 3):
        keep(tmp_path, a_checkpoint(tmp_path, step), served=[oldest])

    assert published_steps(tmp_path) == [1, *range(3, KEPT_MAX + 3)]


def test_the_engine_says_what_was_published(tmp_path: Path) -> None:
    first = replace_target(a_version(1, "/weights"), target=False)
    night = a_version(2, str(tmp_path / "published" / "step-40"))

    assert published_in(tmp_path, [a_version(1, "/weights")]) == (Path("/weights"), -1)
    assert published_in(tmp_path, [first, night]) == (Path(night.weights_dir), 40)
    back = a_version(1, "/weights")
    assert published_in(tmp_path, [back, replace_target(night, target=False)]) == (
        Path("/weights"),
        40,
    )


def replace_target(version: VersionState, *, target: bool) -> VersionState:
    return msgspec.structs.replace(version, target=target)


def test_what_a_user_puts_beside_the_published_steps_is_no_step(tmp_path: Path) -> None:
    versions = [
        a_version(1, str(tmp_path / "published" / "step-7")),
        a_version(2, str(tmp_path / "published" / "mine")),
    ]
    assert published_in(tmp_path, versions)[1] == 7
