"""A job that is ended anywhere and started again learns the same, bit for bit."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from emulator.errors import ChannelError, ConfigError, UltraServeError
from emulator.training_fleet import TrainingFleet
from serving.errors import TrainingDiverged
from serving.server.training.checkpoint import CheckpointDirectory
from serving.server.training.job_status import CurvePoint, TrainingPhase, read_curve, read_status
from serving.server.training.job_timing import job_timing
from tests.emulator.chip.in_process_training import InProcessTraining
from tests.serving.server.training.tiny_job import Job, tiny_spec


class Killed(BaseException):
    """The process ends here, as far as the job can tell."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def whole(root: Path) -> Job:
    """A job that nothing happened to."""
    job = Job(tiny_spec(root), root / "whole")
    assert job.run().phase is TrainingPhase.DONE
    return job


@pytest.mark.long
def test_a_job_learns_and_shows_what_it_does(whole: Job) -> None:
    status = read_status(whole.path)
    points = read_curve(whole.path / "curve.jsonl")

    assert status is not None
    assert (status.phase, status.step, status.tokens) == (TrainingPhase.DONE, 6, 6 * 64)
    assert [point.step for point in points] == whole.steps == [1, 2, 3, 4, 5, 6]
    assert points[-1].loss < points[0].loss
    assert status.held_out_nats is not None
    assert status.first_held_out_nats is not None
    assert status.held_out_nats < status.first_held_out_nats
    assert [point.held_out_nats is not None for point in points] == [0, 0, 1, 0, 0, 1]
    assert points[5].emulated_ns - points[4].emulated_ns > 0
    timing = job_timing(whole.spec)
    evaluations = 1 + 2 + 2  # before the first step, twice when due, twice for a checkpoint alone
    spells = [timing.step] * 6 + [timing.evaluation(4 * 16)] * evaluations + [timing.checkpoint] * 3
    assert status.emulated_ns == sum(spell.duration_ns for spell in spells)
    assert status.joules == pytest.approx(sum(spell.joules for spell in spells))
    assert (status.checkpoint, status.checkpoint_step) == ("step-6", 6)
    assert status.checkpoint_held_out_nats == points[-1].held_out_nats


@pytest.mark.long
def test_a_checkpoint_holds_what_serving_reads_rounded_from_what_was_learned(whole: Job) -> None:
    directory = whole.path / "checkpoints" / "step-6"
    served = load_file(directory / "model.safetensors")
    learned = load_file(directory / "training.safetensors")

    TrainingFleet(
        weights_dir=directory,
        chips=2,
        precision=whole.trainers[0]._precision,
        optimizer=whole.trainers[0]._optimizer,
    )  # checks every tensor's name and shape
    embedding = served["model.embed_tokens.weight"]
    assert embedding.dtype.name == "bfloat16"
    assert np.array_equal(embedding, learned["master.embedding"].astype(embedding.dtype))
    expert = served["model.layers.1.mlp.experts.5.down_proj.weight"]
    assert np.array_equal(expert, learned["master.layers.1.down"][5].T.astype(expert.dtype))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (directory / name).read_bytes() == (Path(whole.spec.weights) / name).read_bytes()


@pytest.mark.long
def test_old_checkpoints_are_removed(whole: Job) -> None:
    assert sorted(path.name for path in (whole.path / "checkpoints").iterdir()) == [
        "step-4",
        "step-6",
    ]


ROUNDS = 6 * 2 * 10
"""Messages of the whole job, about: steps, micro-batches, rounds of one."""


@pytest.mark.slow
@settings(max_examples=6)
@given(kills=st.lists(st.integers(1, ROUNDS), min_size=1, max_size=3))
def test_a_job_that_is_killed_anywhere_has_the_same_losses_bit_for_bit(
    root: Path, whole: Job, kills: list[int]
) -> None:
    path = root / "killed"
    shutil.rmtree(path, ignore_errors=True)
    for kill in kills:
        left = [kill]

        def fails(_trainer: InProcessTraining, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        try:
            Job(whole.spec, path, fails).run()
        except Killed:
            continue
    last = Job(whole.spec, path)
    last.run()

    assert last.curve == whole.curve
    for name in ("model.safetensors", "training.safetensors", "state.json"):
        mine, theirs = (each / "checkpoints/step-6" / name for each in (path, whole.path))
        assert mine.read_bytes() == theirs.read_bytes()


@pytest.mark.long
def test_the_first_checkpoint_is_early_and_a_kill_loses_no_more_than_the_status_says(
    root: Path,
) -> None:
    spec = tiny_spec(root, first_save_steps=2, save_every_steps=50, eval_every_steps=0)
    path = root / "young"

    def fails(_trainer: InProcessTraining) -> None:
        if first.steps[-1:] == [4]:
            raise Killed

    first = Job(spec, path, fails)
    with pytest.raises(Killed):
        first.run()
    status = read_status(path)
    assert status is not None
    assert (status.step, status.checkpoint_step, status.next_save_step) == (4, 2, 50)

    second = Job(spec, path)
    second.run()
    assert second.steps == [3, 4, 5, 6]


@pytest.mark.long
@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_job_that_is_asked_to_stop_saves_and_goes_on_the_same(
    root: Path, whole: Job, stop_after: int
) -> None:
    path = root / f"stopped-{stop_after}"
    first = Job(whole.spec, path)
    status = first.run(stop_after)

    assert (status.phase, status.step) == (TrainingPhase.STOPPED, stop_after)
    assert status.checkpoint == f"step-{stop_after}"
    second = Job(whole.spec, path)
    second.run()
    assert second.steps == list(range(stop_after + 1, 7))
    # It has saved once more, which takes emulated time; nothing else differs.
    assert [replace(point, emulated_ns=0, joules=0.0) for point in curve(path)] == [
        replace(point, emulated_ns=0, joules=0.0) for point in curve(whole.path)
    ]


def curve(path: Path) -> list[CurvePoint]:
    return read_curve(path / "curve.jsonl")


@pytest.mark.long
def test_a_job_goes_on_with_another_number_of_chips(root: Path, whole: Job) -> None:
    path = root / "resized"
    Job(whole.spec, path).run(stop_after=2)

    Job(tiny_spec(root, chips=1, micro_batch_tokens=32), path).run()

    mine = [point.loss for point in read_curve(path / "curve.jsonl")]
    theirs = [point.loss for point in read_curve(whole.path / "curve.jsonl")]
    assert mine[:2] == theirs[:2]
    assert mine == pytest.approx(theirs, abs=0.02)  # BF16 operands; sums in another order


@pytest.mark.long
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_is_used(
    root: Path, whole: Job
) -> None:
    path = root / "damaged"
    shutil.copytree(whole.path, path)
    file = path / "checkpoints" / "step-6" / "training.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    job = Job(whole.spec, path)
    status = job.run()

    assert any("step-6/training.safetensors: is not what was written" in line for line in job.said)
    assert job.steps == [5, 6]
    assert status.phase is TrainingPhase.DONE
    assert job.curve == whole.curve


@pytest.mark.long
def test_a_lost_chip_starts_again_from_the_newest_checkpoint(root: Path, whole: Job) -> None:
    lost = []

    def fails(trainer: InProcessTraining) -> None:
        if not lost and trainer.rounds == 47:
            lost.append(1)
            trainer.kill(1)

    job = Job(whole.spec, root / "lost", fails)
    status = job.run()

    assert lost
    assert len(job.trainers) == 2
    assert status.phase is TrainingPhase.DONE
    assert job.curve == whole.curve


def test_chips_that_are_lost_again_and_again_end_the_job_in_one_line(
    root: Path, whole: Job
) -> None:
    job = Job(whole.spec, root / "hopeless", lambda trainer: trainer.live.pop(0, None))

    with pytest.raises(ChannelError, match="lost 4 times without a new checkpoint"):
        job.run()

    status = read_status(job.path)
    assert status is not None
    assert status.phase is TrainingPhase.FAILED
    assert "chip 0 lost" in status.message


@pytest.mark.long
def test_a_loss_that_is_no_number_ends_the_job_and_keeps_the_checkpoint_before(
    root: Path, whole: Job
) -> None:
    def fails(trainer: InProcessTraining) -> None:
        if trainer.rounds == 60:
            trainer.live[0]._weights.dense["lm_head"][0, 0] = np.nan
            trainer.live[0]._weights.dense.changed()

    job = Job(whole.spec, root / "diverged", fails)

    with pytest.raises(TrainingDiverged, match="the loss is nan"):
        job.run()

    newest, refused = CheckpointDirectory(job.path / "checkpoints", keep=2).newest()
    assert newest is not None
    assert not refused
    assert newest.state.loss is not None
    assert np.isfinite(newest.state.loss)


@pytest.mark.long
def test_a_job_that_cannot_keep_up_with_its_clock_counts_how_late_it_is(root: Path) -> None:
    spec = tiny_spec(root, steps=2, dilation=1e-6, eval_every_steps=0)

    status = Job(spec, root / "late").run()

    assert status.lag_ns > 1e9  # a step of microseconds took this host far longer
    assert status.emulated_ns < 1e9


@pytest.mark.slow
def test_one_batch_is_learned_by_heart(root: Path) -> None:
    spec = tiny_spec(
        root, one_batch=True, steps=150, save_every_steps=150, eval_every_steps=0, warmup_steps=5
    )
    status = Job(spec, root / "overfit").run()

    assert status.loss is not None
    assert status.loss < 0.05


def test_another_job_in_the_same_directory_is_refused(root: Path, whole: Job) -> None:
    with pytest.raises(ConfigError, match=r"^seed=9: expected 0, with which this directory"):
        Job(tiny_spec(root, seed=9), whole.path).run()


def test_a_job_that_is_asked_to_stop_before_its_chips_start_starts_none(
    root: Path, whole: Job
) -> None:
    job = Job(whole.spec, root / "at-once")

    status = job.run(stop_after=0)

    assert (status.phase, status.step, status.checkpoint) == (TrainingPhase.STOPPED, 0, "")
    assert job.trainers == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"corpus": "/nowhere"}, "corpus=/nowhere: expected a folder"),
        ({"model": "gpt-oss-120b"}, "smallest of trn3-nl72x2 that fits"),
        ({"sequence_tokens": 1 << 18, "batch_tokens": 1 << 19}, "at most the model's context of"),
        ({"seed": 9}, "seed=9: expected 0, with which this directory's job began"),
    ],
)
def test_a_job_that_cannot_begin_says_why_in_its_status(
    root: Path, whole: Job, tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    path = tmp_path / "job"
    if "seed" in wrong:
        shutil.copytree(whole.path, path)

    with pytest.raises(UltraServeError):
        Job(tiny_spec(root, **wrong), path).run()

    status = read_status(path)
    assert status is not None
    assert (status.phase, status.pid) == (TrainingPhase.FAILED, os.getpid())
    assert words in status.message
    assert "\n" not in status.message
    assert status.checkpoint == ("step-6" if "seed" in wrong else "")  # what is known stays


def test_weights_that_lack_tokens_of_their_tokenizer_are_refused(
    root: Path, whole: Job, tmp_path: Path
) -> None:
    weights = tmp_path / "narrow"
    shutil.copytree(whole.spec.weights, weights)
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))

    with pytest.raises(ConfigError, match="expected a tokenizer of the model's 300 tokens"):
        Job(tiny_spec(root, weights=str(weights)), tmp_path / "job").run()


def test_a_corpus_that_changed_is_refused(root: Path, whole: Job) -> None:
    path = root / "moved"
    shutil.copytree(whole.path, path)
    state = path / "checkpoints/step-6/state.json"
    shutil.rmtree(path / "checkpoints/step-4")
    text = json.loads(state.read_text()) | {"corpus_sha256": "0" * 64}
    job = Job(whole.spec, path)
    other = CheckpointDirectory(path / "checkpoints", keep=2).newest()[0]
    assert other is not None
    with safe_open(state.parent / "training.safetensors", framework="np") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    CheckpointDirectory(path / "checkpoints", keep=2).write(
        type(other.state)(**text),
        weights={},
        values=values,
        copied_from=Path(whole.spec.weights),
    )

    with pytest.raises(ConfigError, match=r"^corpus=.*with which this directory's job began"):
        job.run()
