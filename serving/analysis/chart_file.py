"""A chart written to a file, in the format of the path's suffix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import altair as alt

from emulator.errors import ConfigError

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "png": {"scale_factor": 2},
    "svg": {},
    "html": {"inline": True},
}


def write_chart(
    chart: alt.TopLevelMixin, path: Path, *, field: str, kinds: Sequence[str] = tuple(_OPTIONS)
) -> None:
    """Write `chart` to `path`, whose suffix is one of `kinds`; `field` names the path in errors.

    Raises ConfigError for another suffix, or a path that cannot be written.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in kinds:
        suffixes = " or ".join(f".{each}" for each in kinds)
        raise ConfigError(field=field, value=path, expected=f"a path that ends in {suffixes}")
    options: dict[str, Any] = {"format": kind, **_OPTIONS[kind]}
    try:
        chart.save(str(path), **options)
    except OSError as error:
        raise ConfigError(
            field=field, value=path, expected=f"a path to write to ({error.strerror})"
        ) from error
