"""The API processes of a server, and which of them this is.

The first one is the server's own process: it has the engine, admission, the control service and all
else of which a server has one. The others are its children, and serve HTTP alone. What they share
lies in a directory of the server's; the engine's process finds its place by the environment too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from serving.process.json_settings import read_settings, settings_text

ENVIRONMENT: Final = "ULTRASERVE_API_PROCESSES"

NAME: Final = "ApiServer"
"""Of the processes beside the first, with their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiProcesses:
    """`count` processes, of which this is number `index`, from 0; `directory` is this user's."""

    count: int
    directory: Path
    index: int = 0

    def numbered(self, index: int) -> Self:
        """The same, as process `index` sees it."""
        return replace(self, index=index)

    @property
    def is_first(self) -> bool:
        """Whether this process is the server's own."""
        return self.index == 0

    @property
    def permits(self) -> Path:
        """Socket at which the first process gives the others their permits."""
        return self.directory / "permits"

    @property
    def status(self) -> Path:
        """Record of the engine's status, which all read."""
        return self.directory / "status"

    @property
    def metrics(self) -> Path:
        """Directory of prometheus_client's files, by which figures add up."""
        return self.directory / "metrics"

    def engine_addresses(self, index: int) -> tuple[str, str]:
        """ZeroMQ addresses of process `index`: from it to the engine, and back."""
        return f"ipc://{self.directory}/input-{index}", f"ipc://{self.directory}/output-{index}"

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {ENVIRONMENT: settings_text(self)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Those of this process's server; None where it has one API process."""
        text = environment.get(ENVIRONMENT)
        return None if text is None else read_settings(text, cls)
