"""The file of a sweep: its record as one JSON document, beside the files of its runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from loadgen.errors import FileError, OptionError
from loadgen.records.sweep_record import SweepRecord

FORMAT: Final = "ultraserve-loadgen-sweep/1"
NAME: Final = "sweep.json"
"""What the file is called in a sweep's folder."""


def write_sweep(path: Path, sweep: SweepRecord) -> None:
    """Write it whole; raises OptionError if the file cannot be written."""
    text = json.dumps({"format": FORMAT, **asdict(sweep)}, indent=1)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise OptionError(option="--dir", value=path.parent, expected=expected) from error


def read_sweep(path: Path) -> SweepRecord:
    """Read what `write_sweep` wrote; raises FileError, naming the file and what is wrong."""
    try:
        written = json.loads(path.read_bytes())
        found = written.pop("format", None) if isinstance(written, dict) else None
        if found != FORMAT:
            raise ValueError(f"not a sweep of the format {FORMAT}")
        return msgspec.convert(written, SweepRecord)
    except OSError as error:
        raise FileError(path=path, line=None, reason=error.strerror or str(error)) from error
    except ValueError as error:  # msgspec's and json's own are such
        raise FileError(path=path, line=None, reason=str(error)) from error
