"""Where measurements lie, and what may lie beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError

ENVIRONMENT: Final = "ULTRASERVE_MEASUREMENTS"
ROWS_FILE: Final = "inferencex_dsr1.csv"


def measurements_file(given: Path | None, environment: Mapping[str, str]) -> Path:
    """The file that is given, else the one in the folder that the environment names, else in
    ./measurements.

    Raises ConfigError that says what to give when there is none.
    """
    if given is not None:
        return given
    named = environment.get(ENVIRONMENT)
    folders = ([Path(named)] if named else []) + [Path("measurements")]
    for folder in folders:
        if (folder / ROWS_FILE).is_file():
            return folder / ROWS_FILE
    looked = ", ".join(str(folder / ROWS_FILE) for folder in folders)
    raise ConfigError(
        field="data",
        value="(not given)",
        expected=f"--data FILE, or a folder of measurements in {ENVIRONMENT}; looked for {looked}",
    )
