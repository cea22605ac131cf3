"""Runs the benchmarks named on the command line, or all: `python -m tests.benchmarks [NAME ...]`.

Each runs in a process of its own, so that none inherits another's threads or engines.
"""

import subprocess
import sys

NAMES = (
    "chips_start",
    "decode_step",
    "decode_step_fleet",
    "against_transformers",
    "client_overhead",
    "expert_balance",
    "prefill_throttling",
    "collectives_vs_torus",
)


def main(names: list[str]) -> int:
    """Run them one after the other; returns 1 when one failed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"benchmarks: {unknown[0]}: expected one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
        failed |= subprocess.run(command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
