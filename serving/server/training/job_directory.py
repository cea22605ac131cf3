"""A training job's directory: its whole interface to the process that started it.

job.json        the settings                      status.json  after the last step
curve.jsonl     every step                        log          lines for people
checkpoints/    see `checkpoint`                  tokens/      the corpus as tokens
initial/        fresh weights, if asked for
"""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from emulator.data.bfloat16_checkpoint import safetensors_bytes
from emulator.errors import ConfigError
from serving.server.training.atomic_file import (
    PARTIAL,
    locked_directory,
    publish_directory,
    remove_leftovers,
    write_file,
    write_synced,
)
from serving.server.training.checkpoint import COPIED, WEIGHTS, CheckpointDirectory
from serving.server.training.fresh_weights import fresh_tensors
from serving.server.training.job_spec import JobSpec, check_same_job, read_spec
from serving.server.training.job_status import write_failure

SPEC_FILE: Final = "job.json"
LOG_FILE: Final = "log"
_LOCK_FILE: Final = "lock"


class JobDirectory:
    """The directory of the job `spec`, locked while entered.

    An exception inside is recorded in the job's status. Entering raises ConfigError when another
    process trains in it, it holds another job, or cannot be created.
    """

    def __init__(self, path: Path, spec: JobSpec) -> None:
        self.path = path
        self._spec = spec
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._lock = _locked(self.path)
        try:
            self._take_over()
        except BaseException as error:
            self.__exit__(type(error), error, None)
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
        assert self._lock is not None, "the directory is not entered"
        with self._lock:  # closed at the end, and the lock with it
            if error is not None:
                # A disk that is full keeps the old status; what is raised says so.
                with contextlib.suppress(OSError):
                    write_failure(self.path, error)

    def checkpoints(self) -> CheckpointDirectory:
        """The job's checkpoints."""
        return CheckpointDirectory(self.path / "checkpoints", keep=self._spec.keep_checkpoints)

    def first_weights(self) -> Path:
        """The initial weights' directory; draws fresh ones if need be. Raises CheckpointError when
        config.json lacks their sizes.
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
                    write_synced(partial / name, (given / name).read_bytes())
            tensors = fresh_tensors(given, seed=self._spec.fresh_seed)
            write_synced(partial / WEIGHTS, safetensors_bytes(tensors))
            publish_directory(partial, path)
        return path

    def say(self, line: str) -> None:
        """Append a line to the log."""
        with (self.path / LOG_FILE).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")


def note_refused(path: Path, error: ConfigError) -> None:
    """Record refused settings in the status in `path`, if it exists and no other process trains in
    it.
    """
    if not path.is_dir():
        return
    try:
        with _locked(path):
            write_failure(path, error)
    except ConfigError:
        return


def _locked(path: Path) -> IO[bytes]:
    return locked_directory(path, _LOCK_FILE, field="output", use="no other process trains")
