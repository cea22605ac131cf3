"""Rows of public serving measurements: a configuration, a load, and its results.

The columns are those of InferenceX's export. Results are kept apart from the configuration (every
setting but the number of users), so that no prediction can see them.
"""

import csv
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError

ENVIRONMENT: Final = "ULTRASERVE_MEASUREMENTS"
ROWS_FILES: Final = "inferencex_*.csv"
_DIVISION_COLUMNS: Final = ("tp", "ep", "dp_attention")
POOL_COLUMNS: Final = ("gpu", *_DIVISION_COLUMNS, "num_workers")
METRICS: Final = {
    "tpot": "tpot_s",
    "ttft": "ttft_s",
    "mean_ttft": "mean_ttft_s",
    "tokens_per_s": "tokens_per_s_per_chip",
    "median_tpot": "median_tpot_s",
    "p99_tpot": "p99_tpot_s",
    "p99_ttft": "p99_ttft_s",
}
"""Metrics by name, with the attribute that holds each; the last three only of rows that have them.
"""
MAIN_METRICS: Final = ("tpot", "ttft", "mean_ttft", "tokens_per_s")
"""Those of every table."""
FINGERPRINT_DIGITS: Final = 12
_WORDS: Final = dict.fromkeys(("true", "1", "1.0"), True) | dict.fromkeys(
    ("false", "0", "0.0"), False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolColumns:
    """The columns of the GPUs that prefill, or of those that decode."""

    gpus: int
    tp: int
    ep: int
    dp_attention: bool
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The setup; `prefill` and `decode` are the same GPUs unless it is disaggregated."""

    hardware: str
    framework: str
    precision: str
    speculative: bool
    disaggregated: bool
    multinode: bool
    prefill: PoolColumns
    decode: PoolColumns
    prompt_tokens: int
    output_tokens: int
    day: date | None

    @property
    def fingerprint(self) -> str:
        """A digest of the configuration, independent of the file."""
        text = "|".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]

    @property
    def workload(self) -> str:
        """Prompt and output lengths, as the benchmark names them."""
        return f"{self.prompt_tokens}/{self.output_tokens}"

    @property
    def layout(self) -> str:
        """The partition in a few characters: workers x GPUs, ep, and dp where attention has it."""

        def pool(columns: PoolColumns) -> str:
            gpus = columns.gpus // max(1, columns.workers) if self.disaggregated else columns.tp
            ep = f" ep{columns.ep}" if columns.ep > 1 else ""
            workers = f"{columns.workers}x" if self.disaggregated else ""
            return f"{workers}{gpus}{ep}{' dp' if columns.dp_attention else ''}"

        if not self.disaggregated:
            return pool(self.decode)
        return f"{pool(self.prefill)} + {pool(self.decode)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """In seconds and tokens/s, `ttft_s` a median, `tpot_s` a mean; None where a cell is empty."""

    tpot_s: float | None
    ttft_s: float | None
    mean_ttft_s: float | None
    tokens_per_s_per_chip: float | None
    median_tpot_s: float | None
    p99_tpot_s: float | None
    p99_ttft_s: float | None

    def of(self, metric: str) -> float | None:
        """By the metric's name, one of METRICS."""
        found: float | None = getattr(self, METRICS[metric])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One line of a file; `usable` is the file's own judgement of it."""

    file: str
    line: int
    configuration: Configuration
    users: int
    results: Results
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedRow:
    """A line that is not predicted, with the reason."""

    file: str
    line: int
    hardware: str
    reason: str


def measurement_files(
    given: Sequence[Path] | None, environment: Mapping[str, str]
) -> tuple[Path, ...]:
    """The given files, else those in the environment's folder or ./measurements, by name.

    Raises ConfigError without any.
    """
    if given:
        return tuple(given)
    named = environment.get(ENVIRONMENT)
    folders = ([Path(named)] if named else []) + [Path("measurements")]
    for folder in folders:
        found = sorted(folder.glob(ROWS_FILES))
        if found:
            return tuple(found)
    looked = ", ".join(str(folder / ROWS_FILES) for folder in folders)
    raise ConfigError(
        field="data",
        value="(not given)",
        expected=f"--data FILE, or a folder of measurements in {ENVIRONMENT}; looked for {looked}",
    )


def read_rows(path: Path) -> tuple[MeasuredRow | ExcludedRow, ...]:
    """Every row of the CSV file at `path`; an unreadable result counts as empty.

    Raises ConfigError, naming the file, if it is unreadable, lacks a column, or has no rows.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, restkey="", restval=None)
            _check_header(path, reader.fieldnames)
            rows = tuple(_rows(reader, path.name))
    except OSError as error:
        raise ConfigError(
            field="data", value=path, expected=f"a file that can be read ({error.strerror})"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(field="data", value=path, expected=f"CSV text ({error})") from error
    if not rows:
        raise ConfigError(field="data", value=path, expected="at least one row below the header")
    return rows


def _rows(reader: "csv.DictReader[str]", file: str) -> Iterator[MeasuredRow | ExcludedRow]:
    for cells in reader:
        if not any(value for value in cells.values()):
            continue
        line = reader.line_num
        try:
            yield _row(_Cells(file=file, line=line, cells=cells))
        except ConfigError as error:
            hardware = (cells.get("hardware") or "").strip().lower()
            yield ExcludedRow(file=file, line=line, hardware=hardware, reason=str(error))


def _check_header(path: Path, names: object) -> None:
    found = set(names) if isinstance(names, list) else set()
    missing = [name for name in required_columns() if name not in found]
    if missing:
        raise ConfigError(
            field=f"{path}: header", value=f"without {', '.join(missing)}", expected="these columns"
        )


def required_columns() -> tuple[str, ...]:
    """Of every file; of the others `usable` and further percentiles are read."""
    pools = [_column(pool, name) for pool in ("prefill", "decode") for name in POOL_COLUMNS]
    return (
        *("hardware", "framework", "precision", "spec_method", "disagg", "is_multinode"),
        *pools,
        *("isl", "osl", "conc", "date", "tput_per_gpu", "mean_ttft", "median_ttft", "mean_tpot"),
    )


def _column(pool: str, name: str) -> str:
    return f"num_{pool}_gpu" if name == "gpu" else f"{pool}_{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    file: str
    line: int
    cells: Mapping[str, str | None]

    def text(self, name: str) -> str:
        value = (self.cells.get(name) or "").strip()
        if not value:
            raise self.refusal(name, "a word")
        return value.lower()

    def blank(self, name: str) -> bool:
        return not (self.cells.get(name) or "").strip()

    def count(self, name: str, least: int = 1) -> int:
        number = self._number(name)
        if number is None or number != int(number) or number < least:
            raise self.refusal(name, f"a whole number of at least {least}")
        return int(number)

    def truth(self, name: str) -> bool:
        word = (self.cells.get(name) or "").strip().lower()
        if word not in _WORDS:
            raise self.refusal(name, "True or False")
        return _WORDS[word]

    def result(self, name: str) -> float | None:
        try:
            number = self._number(name)
        except ConfigError:
            return None
        return number if number is not None and number > 0 else None

    def day(self, name: str) -> date | None:
        if self.blank(name):
            return None
        try:
            return date.fromisoformat((self.cells.get(name) or "").strip()[:10])
        except ValueError:
            raise self.refusal(name, "a date, YYYY-MM-DD") from None

    def _number(self, name: str) -> float | None:
        text = (self.cells.get(name) or "").strip()
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            raise self.refusal(name, "a number") from None
        if not math.isfinite(number):
            raise self.refusal(name, "a finite number")
        return number

    def refusal(self, name: str, expected: str) -> ConfigError:
        return ConfigError(field=name, value=self.cells.get(name) or "nothing", expected=expected)


def _row(cells: _Cells) -> MeasuredRow:
    method = cells.text("spec_method")
    if method not in ("none", "mtp"):
        raise cells.refusal("spec_method", "none or mtp")
    disaggregated = cells.truth("disagg")
    pools = _pools(cells, disaggregated=disaggregated)
    configuration = Configuration(
        hardware=cells.text("hardware"),
        framework=cells.text("framework"),
        precision=cells.text("precision"),
        speculative=method == "mtp",
        disaggregated=disaggregated,
        multinode=cells.truth("is_multinode"),
        prefill=pools[0],
        decode=pools[1],
        prompt_tokens=cells.count("isl"),
        output_tokens=cells.count("osl"),
        day=cells.day("date"),
    )
    results = Results(
        tpot_s=cells.result("mean_tpot"),
        ttft_s=cells.result("median_ttft"),
        mean_ttft_s=cells.result("mean_ttft"),
        tokens_per_s_per_chip=cells.result("tput_per_gpu"),
        median_tpot_s=cells.result("median_tpot"),
        p99_tpot_s=cells.result("p99_tpot"),
        p99_ttft_s=cells.result("p99_ttft"),
    )
    usable = (cells.cells.get("usable") or "1").strip().lower()
    return MeasuredRow(
        file=cells.file,
        line=cells.line,
        configuration=configuration,
        users=cells.count("conc"),
        results=results,
        usable=usable in ("1", "1.0", "true", "yes"),
    )


def _pools(cells: _Cells, *, disaggregated: bool) -> tuple[PoolColumns, PoolColumns]:
    """Of prompts and of decoding: where they are one, a row may leave out how either is divided,
    and how many GPUs and workers there are.
    """
    names = ["prefill", "decode"]
    if disaggregated:
        return _pool(cells, names[0]), _pool(cells, names[1])
    for own, other in (names, names[::-1]):
        if all(cells.blank(_column(own, name)) for name in _DIVISION_COLUMNS):
            pool = _pool(cells, other, counted=False)
            return pool, pool
    return _pool(cells, names[0], counted=False), _pool(cells, names[1], counted=False)


def _pool(cells: _Cells, pool: str, *, counted: bool = True) -> PoolColumns:
    """`counted`: whether its GPUs and workers have to be known."""

    def number(name: str) -> int:
        column = _column(pool, name)
        return 0 if cells.blank(column) and not counted else cells.count(column, least=0)

    return PoolColumns(
        gpus=number("gpu"),
        tp=cells.count(_column(pool, "tp")),
        ep=cells.count(_column(pool, "ep")),
        dp_attention=cells.truth(_column(pool, "dp_attention")),
        workers=number("num_workers"),
    )
