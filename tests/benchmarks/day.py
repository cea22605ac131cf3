"""Wall and CPU time of `ultraserve day`: one UltraServer, six policies at three loads.

Each day is walked twice: with an empty cache, then with what the first run kept of the machine. By
default of a made-up week's first day; policies are those of `--compare`. Targets: 30 s, and 2 s
with what was kept. Kernels are compiled before, as an installation does, and Python keeps its
bytecode, as it does unless an environment forbids it.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

import msgspec

DAYS = {
    "qwen3-30b-a3b": (),
    "gpt-oss-120b": (),
    "deepseek-r1": ("--train-recipe", "searched"),
}
"""Served models, and what training one takes on an UltraServer."""
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def children_cpu_s() -> float:
    """Of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line for each run, with the stages of the first one's command."""
    run = [sys.executable, "-m"]
    subprocess.run([*run, "serving.analysis.kernels"], check=True, stdout=subprocess.DEVNULL)
    settings = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    for model, options in DAYS.items():
        command = [*run, "serving.main", "day", "--model", model, *options]
        with tempfile.TemporaryDirectory() as cache:
            own = {"XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": cache}
            for name in ("nothing kept", "kept"):
                cpu_s, began_s = children_cpu_s(), time.perf_counter()
                done = subprocess.run(
                    [*command, "--policies", "all", "--json"],
                    check=True,
                    capture_output=True,
                    env={**settings, **own},
                )
                wall_s, cpu_s = time.perf_counter() - began_s, children_cpu_s() - cpu_s
                parts = msgspec.json.decode(done.stdout)["wall_parts_s"].items()
                stages = ", ".join(f"{stage} {stage_s:.1f}" for stage, stage_s in parts)
                print(
                    f"{model:14} {name:13} {wall_s:5.1f} s of wall time, {cpu_s:5.1f} s of CPU "
                    f"({stages})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
