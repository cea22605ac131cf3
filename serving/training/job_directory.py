"""A training job's directory: its whole interface to whoever started it.

job.json        what was asked for              status.json  after the last step
curve.jsonl     every step                      log          what was said, line by line
checkpoints/    see `checkpoint`                tokens/      the corpus as tokens
initial/        fresh weights, where they were asked for instead of a checkpoint's
"""

import fcntl
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from emulator.data.bfloat16_checkpoint import safetensors_bytes
from emulator.errors import ConfigError
from serving.training.atomic_file import (
    PARTIAL,
    publish_directory,
    remove_leftovers,
    write_file,
    write_synced,
)
from serving.training.checkpoint import COPIED, WEIGHTS, CheckpointDirectory
from serving.training.fresh_weights import fresh_tensors
from serving.training.job_spec import JobSpec, check_same_job, read_spec

SPEC_FILE: Final = "job.json"
LOG_FILE: Final = "log"
_LOCK_FILE: Final = "lock"


class JobDirectory:
    """The directory of the job `spec`, held against other processes while it is entered.

    Raises:
        ConfigError: another process trains in it, it holds another job, or cannot be made.
    """

    def __init__(self, path: Path, spec: JobSpec) -> None:
        self.path = path
        self._spec = spec
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / _LOCK_FILE).open("ab")
        except OSError as error:
            expected = f"a directory that can be written to ({error.strerror})"
            raise ConfigError(field="output", value=self.path, expected=expected) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            expected = "a directory in which no other process trains"
            raise ConfigError(field="output", value=self.path, expected=expected) from error
        try:
            self._take_over()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _take_over(self) -> None:
        remove_leftovers(self.path)
        kept = self.path / SPEC_FILE
        if kept.exists():
            check_same_job(read_spec(kept), self._spec)
        write_file(kept, self._spec.to_json())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.close()  # and with it the lock

    def checkpoints(self) -> CheckpointDirectory:
        """The job's checkpoints."""
        return CheckpointDirectory(self.path / "checkpoints", keep=self._spec.keep_checkpoints)

    def first_weights(self) -> Path:
        """Where the weights lie that training begins from; fresh ones are drawn if need be.

        Raises:
            CheckpointError: config.json does not say how large they are.
        """
        given = Path(self._spec.weights)
        if self._spec.fresh_seed is None:
            return given
        path = self.path / "initial"
        if not path.exists():
            partial = self.path / f"{PARTIAL}initial"
            partial.mkdir()
            for name in COPIED:
                if (given / name).is_file():
                    shutil.copyfile(given / name, partial / name)
            tensors = fresh_tensors(given, seed=self._spec.fresh_seed)
            write_synced(partial / WEIGHTS, safetensors_bytes(tensors))
            publish_directory(partial, path)
        return path

    def say(self, line: str) -> None:
        """Add a line to the log."""
        with (self.path / LOG_FILE).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
