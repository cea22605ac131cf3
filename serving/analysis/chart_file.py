"""A chart written to a file, in the format of the path's suffix."""

from pathlib import Path
from typing import Any, Final

import altair as alt

from emulator.errors import ConfigError

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "png": {"scale_factor": 2},
    "svg": {},
    "html": {"inline": True},
}


def check_chart_path(path: Path, *, field: str) -> None:
    """Raises ConfigError for a path that no chart can be written to, before any work is done."""
    if path.suffix.lower().removeprefix(".") not in _OPTIONS:
        suffixes = ", ".join(f".{each}" for each in _OPTIONS)
        raise ConfigError(field, path, f"a path that ends in {suffixes}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(field, path, "a path in a folder that exists")


def write_chart(chart: alt.TopLevelMixin, path: Path, *, field: str) -> None:
    """Write a .png, .svg or .html; raises ConfigError naming `field` for an unwritable path."""
    check_chart_path(path, field=field)
    kind = path.suffix.lower().removeprefix(".")
    options: dict[str, Any] = {"format": kind, **_OPTIONS[kind]}
    try:
        chart.save(str(path), **options)
    except OSError as error:
        raise ConfigError(field, path, f"a path to write to ({error.strerror})") from error
