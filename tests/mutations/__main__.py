"""`python -m tests.mutations`: plant each drawn fault, run the fast tests, say what they caught.

The tests of the module come first, then those of its package; a fault that these do not see meets
all of `make test-fast`. It ends with 1 when fewer than `--at-least` are caught.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.mutations.areas import AREAS, ROOT, nearest_tests
from tests.mutations.draw import PER_AREA, drawn
from tests.mutations.equivalent import EQUIVALENT
from tests.mutations.faults import Fault
from tests.mutations.planted_fault import VARIABLE

SEED: Final = 17
AT_LEAST: Final = 36
LIMIT_S: Final = 900.0
"""A test that runs this long counts as a catch."""

CAUGHT: Final = (1, 2)
"""pytest's exit codes for failed tests, and for modules that cannot be imported. Below 0, a signal
has ended it: compiled functions do not look whether a place is in an array."""

NOTHING_RAN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fault: Fault
    caught: bool
    by: str
    seconds: float


def main(words: Sequence[str]) -> int:
    arguments = _parser().parse_args(words)
    faults = drawn(arguments.seed, without=EQUIVALENT)
    if arguments.only:
        faults = [fault for fault in faults if fault.name in arguments.only]
    if arguments.list:
        for fault in faults:
            print(_described(fault))
        return 0
    judged = partial(_judged, near=arguments.near)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = list(pool.map(judged, faults))
    return _reported(verdicts, min(arguments.at_least, len(faults)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"which faults (default: {SEED})")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these of the drawn ones")
    parser.add_argument("--list", action="store_true", help="show the drawn faults and end")
    parser.add_argument("--near", action="store_true", help="only the tests nearest to a fault")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument(
        "--at-least",
        type=int,
        default=AT_LEAST,
        metavar="N",
        help=f"fail below N caught of {PER_AREA * len(AREAS)} (default: {AT_LEAST})",
    )
    return parser


def _judged(fault: Fault, *, near: bool) -> Verdict:
    began_s = time.monotonic()
    paths = [[str(path)] for path in nearest_tests(fault.module)]
    stages = paths if near else [*paths, []]
    by = next(filter(None, (_failing_test(fault, stage) for stage in stages)), None)
    verdict = Verdict(fault=fault, caught=bool(by), by=by or "", seconds=time.monotonic() - began_s)
    print(_line(verdict), flush=True)
    return verdict


def _failing_test(fault: Fault, paths: Sequence[str]) -> str | None:
    """Run the fast tests of `paths`, or all; returns the first failure."""
    text = fault.applied((ROOT / fault.module).read_text(encoding="utf-8"))
    planted = {
        "module": str(fault.module),
        "name": ".".join(fault.module.with_suffix("").parts).removesuffix(".__init__"),
        "text": text,
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutations.planted_fault"]
    command += ["--fast", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *paths]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, VARIABLE: json.dumps(planted), "CI": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:.0f} s"
    if done.returncode in CAUGHT or done.returncode < 0:
        failed = (line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
        return next(failed, "the run stopped").split(" - ")[0]
    if done.returncode not in (0, NOTHING_RAN):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stderr or done.stdout}")
    return None


def _described(fault: Fault) -> str:
    place = f"{fault.module}:{fault.line} {fault.function}"
    before, after = (" ".join(text.split()) for text in (fault.before, fault.after))
    return f"{fault.name}  {place}  {fault.kind}: {before}  ->  {after}"


def _line(verdict: Verdict) -> str:
    word = "caught  " if verdict.caught else "SURVIVED"
    return f"{word} {verdict.seconds:5.0f} s  {_described(verdict.fault)}  {verdict.by}"


def _reported(verdicts: Sequence[Verdict], at_least: int) -> int:
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"\n{caught} of {len(verdicts)} faults caught; at least {at_least} are wanted")
    for verdict in verdicts:
        if not verdict.caught:
            print(f"survived: {_described(verdict.fault)}")
    return int(caught < at_least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
