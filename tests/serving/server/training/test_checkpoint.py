"""Whatever moment a writer is killed at, the newest checkpoint that holds is the old or the new."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.errors import CheckpointError
from serving.server.training.checkpoint import CheckpointDirectory, CheckpointState, read_checkpoint

STATE = CheckpointState(
    step=1,
    tokens=10,
    loss=1.5,
    held_out_nats=None,
    first_held_out_nats=2.0,
    emulated_ns=3,
    joules=0.25,
    lag_ns=0,
    corpus_sha256="ab",
    seed=1,
)


class Killed(BaseException):
    """The process ends here."""


def write(path: Path, step: int, *, keep: int = 2) -> Path:
    values = {"master.x": np.full(50, step, np.float32)}
    state = CheckpointState(**{**{f: getattr(STATE, f) for f in STATE.__slots__}, "step": step})
    (path.parent / "config.json").write_text("{}")
    directory = CheckpointDirectory(path, keep=keep)
    return directory.write(
        state, weights={"w": values["master.x"]}, values=values, copied_from=path.parent
    )


def newest_step(path: Path) -> int | None:
    found, refused = CheckpointDirectory(path, keep=2).newest()
    assert not refused, "a checkpoint appeared that does not hold"
    return None if found is None else found.state.step


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ends the process at the n-th thing that is done to files. What was written but not synced by
    then is cut in half: the disk has not got it.
    """
    left = [0]
    originals: dict[str, Any] = {}

    def counted(name: str, owner: Any) -> None:
        original = originals[name] = getattr(owner, name)

        def act(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                status = os.fstat(arguments[0]) if name == "fsync" else None
                if status is not None and stat.S_ISREG(status.st_mode):
                    os.ftruncate(arguments[0], status.st_size // 2)
                raise Killed
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, act)

    for name, owner in (
        ("fsync", os),
        ("rename", Path),
        ("replace", Path),
        ("mkdir", Path),
        ("rmtree", shutil),
    ):
        counted(name, owner)

    def arm(count: int) -> None:
        left[0] = count

    return arm


@pytest.mark.long
def test_a_writer_killed_at_any_moment_leaves_the_old_checkpoint_or_the_new(
    tmp_path: Path, kill_at: Callable[[int], None]
) -> None:
    seen = []
    for moment in range(1, 60):
        path = tmp_path / f"at-{moment}" / "checkpoints"
        path.parent.mkdir()
        kill_at(-1)
        write(path, 1)
        write(path, 2)
        kill_at(moment)
        try:
            write(path, 3)
            finished = True
        except Killed:
            finished = False
        kill_at(-1)
        seen.append(newest_step(path))
        assert seen[-1] == 3 if finished else seen[-1] in (2, 3)
        write(path, 3)  # the job comes by again
        assert newest_step(path) == 3
        assert sorted(each.name for each in path.iterdir()) == ["step-2", "step-3"]
        if finished:
            break
    assert finished, "the last moment lies behind the end"
    assert {2, 3} == set(seen)
    assert seen == sorted(seen)


def test_the_newest_of_several_steps_is_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        write(tmp_path / "c", step, keep=9)

    assert newest_step(tmp_path / "c") == 100


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "state.json"])
def test_a_flipped_byte_is_refused_by_the_files_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "c", 5)
    content = bytearray((path / name).read_bytes())
    content[-3] ^= 4
    (path / name).write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{name}: is not what was written"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "config.json"])
def test_a_missing_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "c", 5)
    (path / name).unlink()

    with pytest.raises(CheckpointError, match=f"{name}: cannot be read"):
        read_checkpoint(path)


def test_a_manifest_that_leaves_a_file_out_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c", 5)
    manifest = path / "manifest.json"
    manifest.write_text('{"sha256": {}}')

    with pytest.raises(CheckpointError, match=r"manifest\.json: has no hash of model\.safetensors"):
        read_checkpoint(path)


def test_the_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "c", 1)

    assert read_checkpoint(path).state == STATE
