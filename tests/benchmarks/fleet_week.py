"""Wall and CPU time, and memory, of a fleet's week: `ultraserve fleet` with the shipped file.

Nearly 500,000 chips in 30 buildings, decided every five minutes, eight exact samples included, in
two processes beside the command's own. Targets: 120 s and 4 GB. Kernels are compiled before, as an
installation does.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.day import children_cpu_s

PLAN = Path(__file__).resolve().parents[2] / "deploy" / "fleets" / "rainier.toml"
PROCESSES = 2


def main() -> None:
    """Print one line."""
    run = [sys.executable, "-m"]
    subprocess.run([*run, "serving.analysis.kernels"], check=True, stdout=subprocess.DEVNULL)
    cpu_s, began_s = children_cpu_s(), time.perf_counter()
    command = [*run, "serving.main", "fleet", "--plan", str(PLAN), "--processes", f"{PROCESSES}"]
    subprocess.run(command, check=True, capture_output=True)
    wall_s, cpu_s = time.perf_counter() - began_s, children_cpu_s() - cpu_s
    largest_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(
        f"{PLAN.name}: {wall_s:.0f} s of wall time, {cpu_s:.0f} s of CPU, {largest_mb:,.0f} MB in "
        "the largest process, that which compiles included"
    )


if __name__ == "__main__":
    main()
