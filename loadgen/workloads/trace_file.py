"""Recorded traffic from a file, whose format is detected by its beginning."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from loadgen.errors import FileError, OptionError
from loadgen.workloads import azure2023, burstgpt
from loadgen.workloads.azure2023 import read_azure2023
from loadgen.workloads.burstgpt import read_burstgpt
from loadgen.workloads.mooncake import read_mooncake
from loadgen.workloads.recording import Recording
from loadgen.workloads.servegen import read_servegen
from loadgen.workloads.sharegpt import Conversations, read_sharegpt
from loadgen.workloads.trace_lines import read_bytes
from loadgen.workloads.workload_spec import TraceFormat, WorkloadSpec

Trace: TypeAlias = Recording | Conversations

BUNDLED_TRACE: Final = Path(__file__).parents[1] / "data" / "azure2023_synthetic.csv"
"""Synthetic, in the Azure 2023 format: tests/loadgen/workloads/sample_trace.py makes it."""

_READERS: Final[Mapping[str, Callable[[Path], Recording]]] = {
    "azure2023": read_azure2023,
    "burstgpt": read_burstgpt,
    "mooncake": read_mooncake,
}
_HEAD_BYTES: Final = 65_536  # an entry of a conversation file names its fields within it


def read_trace(spec: WorkloadSpec, *, sessions: int | None = None, seed: int = 0) -> Trace | None:
    """Read the workload's trace and keep its window; None without a trace.

    Of conversations and clients only the first `sessions` are read or drawn, these by `seed`.
    Raises FileError for an unusable file, OptionError for a window on a file without times.
    """
    if spec.trace is None:
        return None
    kind = trace_format(spec.trace) if spec.trace_format == "auto" else spec.trace_format
    if kind == "sharegpt":
        if spec.window_s is not None:
            window = "{:g}-{:g}".format(*spec.window_s)
            raise OptionError("--window", window, f"a trace with times, which {spec.trace} has not")
        return read_sharegpt(spec.trace, limit=sessions)
    if kind == "servegen":
        return read_servegen(spec.trace, seed=seed, window_s=spec.window_s, sessions=sessions)
    recording = read_recording(spec.trace, kind=kind)
    if spec.window_s is None:
        return recording
    kept = recording.window(*spec.window_s)
    if kept is None:
        last_s = recording.arrivals_ns[-1] / 1e9
        reason = "no row arrived in the window {:g}-{:g} s; the last is at {:g} s"
        raise FileError(spec.trace, reason.format(*spec.window_s, last_s))
    return kept


def read_recording(path: Path, *, kind: TraceFormat = "auto", seed: int = 0) -> Recording:
    """Read every row of a trace with arrival times; raises FileError for any other file.

    A folder of clients is drawn by `seed`.
    """
    kind = trace_format(path) if kind == "auto" else kind
    if kind == "servegen":
        return read_servegen(path, seed=seed)
    if kind not in _READERS:
        raise FileError(path, f"its format is {kind}: expected a trace with arrival times")
    return _READERS[kind](path)


def trace_format(path: Path) -> TraceFormat:
    """The format by the file's beginning; raises FileError for an unknown one.

    A folder is a mix of clients.
    """
    kind = known_format(path)
    if kind is not None:
        return kind
    head = _head(path)
    found = f"begins with {_header(head).strip()[:80]!r}" if head.strip() else "is empty"
    reason = (
        f"{found}: expected the header {azure2023.HEADER} (Azure 2023) or {burstgpt.HEADERS[0]}"
        " (BurstGPT), JSON lines (Mooncake), or a JSON list of conversations (ShareGPT)"
    )
    raise FileError(path, reason, line=1)


def known_format(path: Path) -> TraceFormat | None:
    """As `trace_format`; None for another file. Raises FileError for one that cannot be read."""
    if path.is_dir():
        return "servegen"
    head = _head(path)
    first = head.lstrip()[:1]
    if first == "[" or (first == "{" and '"conversations"' in head):
        return "sharegpt"
    if first == "{":
        return "mooncake"
    header = _header(head)
    if header in burstgpt.HEADERS:
        return "burstgpt"
    return "azure2023" if header == azure2023.HEADER else None


def _head(path: Path) -> str:
    return read_bytes(path, _HEAD_BYTES).decode("utf-8-sig", errors="replace")


def _header(head: str) -> str:
    return head.split("\n", 1)[0].rstrip("\r")
