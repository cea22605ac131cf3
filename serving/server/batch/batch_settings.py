"""Settings of a server's batches: read from flags once, passed to the server's process as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from emulator.errors import ConfigError
from serving.process.json_settings import read_settings, settings_text
from startup.typed_options import option

ENVIRONMENT: Final = "ULTRASERVE_BATCH"
LOCK: Final = "server.lock"
"""Of the directory: one server at a time runs its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Where batches live, and how much of them.

    `batch_file_bytes` and `batch_requests` have OpenAI's figures
    (https://platform.openai.com/docs/guides/batch: 200 MB, 50,000 requests).
    """

    GROUP = "batches: OpenAI's Files and Batch APIs, answered when seats are free"

    batch_directory: Path | None = option(
        None,
        "where files, batches and answers live; a server that is started again goes on with them "
        "(default: no such APIs)",
        metavar="DIR",
    )
    batch_file_bytes: int = option(200_000_000, "bytes of an input file, at most")
    batch_requests: int = option(50_000, "requests of a batch, at most")
    batch_key_bytes: int = option(10_000_000_000, "bytes of all files of a key, at most")

    def __post_init__(self) -> None:
        for name in ("batch_file_bytes", "batch_requests", "batch_key_bytes"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(name, value, "at least 1")

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads; none without a directory."""
        if self.batch_directory is None:
            return {}
        return {ENVIRONMENT: settings_text(self)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings of this process, or the defaults."""
        text = environment.get(ENVIRONMENT)
        return cls() if text is None else read_settings(text, cls)
