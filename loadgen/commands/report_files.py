"""The forms of a report, and its writing.

Every file is tried before the run: an hour's results are not lost to an unwritable folder. Files
are written before anything is printed: the pipe may close early.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from loadgen.commands.standard_output import printing
from loadgen.errors import LoadError, OptionError
from loadgen.option_values import new_file
from loadgen.records.run_record import RunRecord
from loadgen.reports.requests_csv import request_lines
from reporting.data_forms import to_csv, to_json
from reporting.document import ReportDocument
from reporting.markdown import to_markdown
from reporting.terminal import print_report, report_console


def _html(report: ReportDocument) -> str:
    from reporting.html import to_html  # noqa: PLC0415 - Altair alone takes half a second

    return to_html(report)


def _png(report: ReportDocument) -> bytes:
    from reporting.charts import to_png  # noqa: PLC0415 - likewise

    png = to_png(report)
    if not png:
        raise LoadError("there is nothing to draw: no request has ended")
    return png


_FORMS: Final[Mapping[str, tuple[str, Callable[[ReportDocument], str | bytes]]]] = {
    "json": ("the report as JSON", to_json),
    "csv": ("a row per figure", to_csv),
    "markdown": ("the report as Markdown", to_markdown),
    "html": ("the report with charts, in one file that needs no server and no network", _html),
    "png": ("the charts as a picture", _png),
}
"""By the name of the option."""

_REQUESTS: Final = "csv_requests"


def add_report_arguments(parser: argparse.ArgumentParser, *, requests: bool) -> None:
    """Add an option for each form; with `requests` also one for a row per request."""
    group = parser.add_argument_group("reports", "beside the one that is printed")
    written = {form: words for form, (words, _) in _FORMS.items()}
    if requests:
        written["csv-requests"] = "a row per request"
    for form, words in written.items():
        group.add_argument(
            f"--{form}", type=new_file, default=None, metavar="FILE", help=f"write {words}"
        )


def asked_files(given: argparse.Namespace) -> list[tuple[str, Path]]:
    """The files to write, with the option of each."""
    names = [*_FORMS, _REQUESTS]
    found = [(f"--{name.replace('_', '-')}", getattr(given, name, None)) for name in names]
    return [(option, path) for option, path in found if path is not None]


def check_report_files(
    given: argparse.Namespace, *, others: Iterable[tuple[str, Path | None]] = ()
) -> None:
    """Raise LoadError for an unwritable file, or one used twice.

    `others` are files read or written otherwise, with their names. Leaves no new file behind.
    """
    used = {path.resolve(): what for what, path in others if path is not None}
    for option, path in asked_files(given):
        whole = path.resolve()
        if whole in used and (path.is_file() or not path.exists()):  # /dev/null takes all
            raise LoadError(f"{used[whole]} and {option} are the same file, {path}")
        used[whole] = option
        there = path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise _unwritable(option, path, error) from error
        if not there:
            path.unlink()


def hand_over(
    given: argparse.Namespace, report: ReportDocument, record: RunRecord | None = None
) -> None:
    """Write every file asked for, then print the report; raises LoadError or OutputClosed."""
    for form, (_, made) in _FORMS.items():
        if (path := getattr(given, form)) is not None:
            _write(f"--{form}", path, [made(report)])
    if record is not None and (path := getattr(given, _REQUESTS)) is not None:
        _write("--csv-requests", path, request_lines(record))
    console = report_console()
    with printing():
        with console.capture() as captured:  # rich itself would end the process at a closed pipe
            print_report(report, console)
        sys.stdout.write(captured.get())


def _write(option: str, path: Path, parts: Iterable[str | bytes]) -> None:
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
    except OSError as error:
        raise _unwritable(option, path, error) from error


def _unwritable(option: str, path: Path, error: OSError) -> OptionError:
    expected = f"a file that can be written ({error.strerror})"
    return OptionError(option, path, expected)
