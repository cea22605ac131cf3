"""`ultraserve train`: wrong settings are one line, and nothing is started."""

import fcntl
import signal
from pathlib import Path

import pytest

from serving.commands.train import progress_line
from serving.main import main
from serving.server.training.job_status import CurvePoint, JobStatus, TrainingPhase, read_status


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--chips", "0"], "chips=0: expected a whole number of at least 1"),
        (["--batch-tokens", "1000"], "batch_tokens=1000: expected whole sequences of 256 tokens"),
        (["--corpus", "/nowhere"], "corpus=/nowhere: expected a folder of text files"),
        (["--warmup", "-1"], "warmup_steps=-1: expected a whole number of at least 0"),
    ],
)
def test_a_wrong_setting_is_one_line(
    flags: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dir", str(tmp_path / "job"), *flags]) == 2

    assert capsys.readouterr().err == f"ultraserve train: {line}\n"


def test_signals_are_its_caller_s_again_when_it_has_ended(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    assert main(["train", "--dir", str(tmp_path / "job"), "--corpus", "/nowhere"]) == 2
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_refused_setting_shows_in_the_status_of_a_directory_that_nobody_trains_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["train", "--dir", str(tmp_path / "job"), "--init", "-1"]
    assert main(wrong) == 2
    assert not (tmp_path / "job").exists()

    (tmp_path / "job").mkdir()
    assert main(wrong) == 2
    status = read_status(tmp_path / "job")
    assert status is not None
    assert status.phase is TrainingPhase.FAILED
    assert status.message == "fresh_seed=-1: expected a whole number of at least 0"

    (tmp_path / "job" / "status.json").unlink()
    with (tmp_path / "job" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(wrong) == 2
    assert read_status(tmp_path / "job") is None
    assert capsys.readouterr().err.count("\n") == 3


def test_weights_that_are_not_there_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(tmp_path / "job"), "--weights", str(tmp_path / "no")]

    assert main(["train", *where]) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not a checkpoint directory" in error


def test_an_output_that_is_a_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").write_text("", encoding="utf-8")

    assert main(["train", "--dir", str(tmp_path / "job")]) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "expected a directory that can be written to" in error


def test_a_step_is_a_line_for_people() -> None:
    status = JobStatus(
        phase=TrainingPhase.TRAINING,
        pid=1,
        chips=2,
        step=40,
        steps=50,
        tokens=4000,
        held_out_bits_per_byte=1.5,
        tokens_per_wall_s=9876.5,
    )
    point = CurvePoint(
        step=40,
        tokens=4000,
        loss=2.25,
        balance=0.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        imbalance=1.0,
        emulated_ns=1_500_000_000,
        joules=1234.56,
        held_out_nats=2.5,
    )

    assert progress_line(point, status) == (
        "step     40  loss 2.2500  held-out 2.5000 (1.500 bits/byte)  9,876 tokens/s  "
        "emulated 1.5000 s  1,234.6 J"
    )
