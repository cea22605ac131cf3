"""Client mixes in the form of ServeGen (alibaba/ServeGen, Apache-2.0; Xiang et al., 2505.09999).

A folder with two files for each client. `chunk-N-trace.csv` has a row for each window of time: its
begin in s, the client's requests per second, their CV, and the gaps' distribution (Gamma or
Weibull) with shape and scale; nothing was sent where no distribution stands. `chunk-N-dataset.json`
has, from some time on each, the weights of prompts' and replies' lengths.

A window's requests are as many as were recorded; their gaps are drawn, and fill it. Prompts and
replies are drawn independently of each other; ServeGen itself takes one random number for both.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen.errors import FileError, OptionError
from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.plain_number import plain_number
from loadgen.workloads.length_histogram import LengthHistogram
from loadgen.workloads.recording import NS_PER_S, Recording
from loadgen.workloads.trace_lines import TOKENS_MAX, csv_fields, read_lines, read_text

REQUESTS_MAX: Final = 10_000_000
GAPS: Final = ("Gamma", "Weibull")
FIELDS: Final = ("input_tokens", "output_tokens")

_NAME: Final = re.compile(r"chunk-(\d+)-trace\.csv")
_ROOM: Final = int.from_bytes(b"servegen", "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWindow:
    """A client's `requests` from `begin_s` to before `end_s`, and the shape of their gaps."""

    client: int
    begin_s: int
    end_s: int
    requests: int
    gaps: str
    shape: float

    def times_s(self, chance: np.random.Generator) -> Float64s:
        """Draw when they come, [requests], in order."""
        count = self.requests + 1  # the last gap reaches the window's end
        if self.gaps == "Gamma":
            drawn = chance.standard_gamma(self.shape, count)
        else:
            drawn = chance.weibull(self.shape, count)
        whole = drawn.sum()  # 0 where gaps of a very small shape are too short for a number
        within = np.cumsum(drawn[:-1]) / whole if whole else np.zeros(self.requests)
        return self.begin_s + within * (self.end_s - self.begin_s)


def read_servegen(
    folder: Path,
    *,
    seed: int,
    window_s: tuple[float, float] | None = None,
    sessions: int | None = None,
) -> Recording:
    """Draw what the folder's clients send from `window_s` FROM to TO, or its first `sessions`.

    A client's requests in a window of its file depend on the seed alone. Raises FileError for an
    unusable file, OptionError for more than `REQUESTS_MAX` requests.
    """
    begin_s, end_s = window_s or (0.0, np.inf)
    clients = {number: _windows(path, number) for number, path in _trace_files(folder)}
    windows = [
        each
        for every in clients.values()
        for each in every
        if each.end_s > begin_s and each.begin_s < end_s
    ]
    windows = _first(windows, begin_s, sessions)
    requests = sum(each.requests for each in windows)
    if requests > REQUESTS_MAX:
        expected = f"a part with at most {REQUESTS_MAX:,} requests, not {requests:,}"
        raise OptionError("--window", window_s, expected)
    columns, left_out = _drawn(folder, windows, seed)
    times_s, inputs, outputs = columns
    kept = np.flatnonzero((times_s >= begin_s) & (times_s < end_s))
    order = kept[times_s[kept].argsort(kind="stable")]
    if not order.size:
        raise FileError(folder, "no client sends anything in this time")
    arrivals_ns = np.rint(times_s[order] * NS_PER_S).astype(np.int64)
    note = f"{left_out:,} requests of clients whose lengths were not recorded left out"
    return Recording(
        kind="servegen",
        arrivals_ns=arrivals_ns - arrivals_ns[0],
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        notes=(note,) if left_out else (),
    )


def _trace_files(folder: Path) -> list[tuple[int, Path]]:
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError as error:
        raise FileError(folder, error.strerror or str(error)) from error
    files = sorted((int(match[1]), path) for match, path in found if match)
    if not files:
        raise FileError(folder, "has no chunk-N-trace.csv: expected clients in ServeGen's form")
    return files


def _windows(path: Path, client: int) -> list[ClientWindow]:
    """The windows with requests; the last one lasts as long as that before it."""
    lines = read_lines(path)
    rows: list[tuple[int, float, str, float]] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_row(line, after_s=rows[-1][0] if rows else -1))
        except ValueError as error:
            raise FileError(path, str(error), line=number) from error
    if len(rows) < 2:
        raise FileError(path, "expected two rows: a window lasts until the next begins")
    ends_s = [row[0] for row in rows[1:]]
    ends_s.append(2 * ends_s[-1] - rows[-2][0])
    return [
        ClientWindow(
            client=client,
            begin_s=begin_s,
            end_s=end_s,
            requests=round(rate * (end_s - begin_s)),
            gaps=gaps,
            shape=shape,
        )
        for (begin_s, rate, gaps, shape), end_s in zip(rows, ends_s, strict=True)
        if gaps and round(rate * (end_s - begin_s))
    ]


def _row(line: str, *, after_s: int) -> tuple[int, float, str, float]:
    """Begin, rate, and the gaps' distribution with its shape; raises ValueError."""
    begin, rate, _, gaps, shape, _ = csv_fields(line, 6)
    begin_s = plain_number(begin)
    if begin_s != int(begin_s) or begin_s <= after_s:
        raise ValueError(f"{begin} is not a whole second after that of the row above")
    if gaps not in ("", *GAPS):
        raise ValueError(f"the gaps {gaps[:40]!r} are not one of {', '.join(GAPS)}")
    if gaps and not plain_number(shape):
        raise ValueError(f"the shape {shape} is not above 0")
    return int(begin_s), plain_number(rate), gaps, plain_number(shape)


def _first(
    windows: Sequence[ClientWindow], begin_s: float, sessions: int | None
) -> list[ClientWindow]:
    """The windows, in order of time, that have the first `sessions` requests from `begin_s` on."""
    ordered = sorted(windows, key=lambda each: (each.begin_s, each.client))
    if sessions is None:
        return ordered
    before = 0
    for number, each in enumerate(ordered):
        if before >= sessions and each.begin_s > ordered[number - 1].begin_s:
            return ordered[:number]
        before += each.requests if each.begin_s >= begin_s else 0
    return ordered


def _drawn(
    folder: Path, windows: Sequence[ClientWindow], seed: int
) -> tuple[tuple[Float64s, Int64s, Int64s], int]:
    """Times, prompt and reply tokens, [requests], window by window; how many have no lengths."""
    lengths: dict[int, _ClientLengths] = {}
    times_s, inputs, outputs = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    left_out = 0
    for each in windows:
        if each.client not in lengths:
            lengths[each.client] = _ClientLengths(folder / f"chunk-{each.client}-dataset.json")
        pair = lengths[each.client].at(each.begin_s)
        if pair is None:
            left_out += each.requests
            continue
        chance = np.random.default_rng([seed, _ROOM, each.client, each.begin_s])
        times_s.append(each.times_s(chance))
        inputs.append(np.maximum(pair[0].draw(chance, each.requests), 1))
        outputs.append(np.maximum(pair[1].draw(chance, each.requests), 1))
    columns = (np.concatenate(times_s), np.concatenate(inputs), np.concatenate(outputs))
    return columns, left_out


class _ClientLengths:
    """A client's lengths over time, parsed when asked for: a file has megabytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, tuple[LengthHistogram, LengthHistogram] | None] = {}
        try:
            periods = json.loads(read_text(path))
            self._periods = {int(begin): fields for begin, fields in periods.items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise FileError(path, "expected a JSON object of seconds, with lengths each") from error

    def at(self, time_s: int) -> tuple[LengthHistogram, LengthHistogram] | None:
        """Prompt and reply of the latest period with lengths by `time_s`; None before any."""
        for begin_s in sorted(self._periods, reverse=True):
            if begin_s > time_s:
                continue
            if begin_s not in self._known:
                self._known[begin_s] = self._pair(self._periods[begin_s])
            if self._known[begin_s] is not None:
                return self._known[begin_s]
        return None

    def _pair(self, fields: Any) -> tuple[LengthHistogram, LengthHistogram] | None:
        """The two histograms; None where one is empty."""
        if not isinstance(fields, Mapping) or not all(name in fields for name in FIELDS):
            raise FileError(self._path, f"expected {' and '.join(FIELDS)}: clients of text alone")
        try:
            prompt, reply = (_histogram(name, str(fields[name])) for name in FIELDS)
        except ValueError as error:
            raise FileError(self._path, str(error)) from error
        return None if prompt is None or reply is None else (prompt, reply)


def _histogram(name: str, text: str) -> LengthHistogram | None:
    """Read `{143: 0.25, 148: 0.75}`; None without a length. Raises ValueError."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise ValueError(f"{name}: expected {{TOKENS: WEIGHT, ...}}, not {text[:40]!r}")
    if not body[1:-1].strip():
        return None
    tokens, weights = zip(*_bins(name, body[1:-1]), strict=True)
    return LengthHistogram(words=name, least=tokens, most=tokens, weights=weights)


def _bins(name: str, body: str) -> Iterator[tuple[int, float]]:
    for each in body.split(","):
        tokens, _, weight = each.partition(":")
        if not tokens.strip().isdigit() or int(tokens) > TOKENS_MAX:
            raise ValueError(f"{name}: {tokens.strip()[:40]!r} is not 0 to {TOKENS_MAX:,} tokens")
        yield int(tokens), plain_number(weight.strip())
