"""Runs the truth server, and the truth of its replies."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.loadgen.truth_server import ServedRequest

_ENDS_WITHIN_S = 30.0


@dataclass(slots=True, kw_only=True)
class TruthProcess:
    """`served` is filled when the server has ended, in order of arrival."""

    url: str
    pid: int
    served: list[ServedRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """The measurements of a client without cost, ms.

    `ttft_ms` [requests], from a request's arrival to the write of its first chunk; `tpot_ms`
    [requests of several tokens], from the first write to the last, over tokens - 1.
    """

    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]


@contextmanager
def truth_process(*options: str, core: int | None = None) -> Iterator[TruthProcess]:
    """Serve with `options` of the truth server until the context ends, on `core` if given."""
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder) / "truth.json"
        module = (sys.executable, "-m", "tests.loadgen.truth_server")
        process = subprocess.Popen(
            [*on_core(core), *module, "--truth", str(truth), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = TruthProcess(
                url=f"http://127.0.0.1:{int(process.stdout.readline())}", pid=process.pid
            )
            yield found
        finally:
            process.terminate()
            try:
                process.wait(_ENDS_WITHIN_S)
            finally:
                process.kill()
        found.served = [ServedRequest(**each) for each in json.loads(truth.read_text())]


def on_core(core: int | None) -> tuple[str, ...]:
    """A command's prefix that keeps it and its children on one core."""
    return () if core is None else ("taskset", "--cpu-list", str(core))


def cores() -> tuple[int, int]:
    """A core for the client and another for the server; SystemExit on a machine of one core."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise SystemExit("a client and a server need a core each: this machine has one")
    return found[0], found[1]


def truth_of(served: Sequence[ServedRequest]) -> Truth:
    ended = [each for each in served if each.written_ns]
    first, last, arrived, tokens = (
        np.array(column, dtype=np.int64)
        for column in (
            [each.written_ns[0] for each in ended],
            [each.written_ns[-1] for each in ended],
            [each.arrived_ns for each in ended],
            [each.tokens for each in ended],
        )
    )
    several = tokens > 1
    return Truth(
        ttft_ms=(first - arrived) / 1e6,
        tpot_ms=(last - first)[several] / (tokens[several] - 1) / 1e6,
    )
