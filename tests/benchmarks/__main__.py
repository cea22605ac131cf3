"""Runs the named benchmarks, or all: `python -m tests.benchmarks [NAME ...]`.

Each has its own process, so that none inherits another's threads or engines. Long ones run only
when named, one at a time, with the arguments after their name.
"""

import subprocess
import sys

NAMES = (
    "chips_start",
    "chip_layer",
    "decode_step",
    "decode_step_fleet",
    "against_transformers",
    "client_overhead",
    "expert_balance",
    "prefill_throttling",
    "collectives_vs_torus",
    "admission_cost",
    "grpc_gate",
    "metrics_page",
    "step_cost",
    "token_path",
    "api_token_path",
    "lent_permits",
    "virtual_time",
    "plan_sessions",
    "day",
    "fleet_week",
)
LONG_NAMES = (
    "soak",
    "load_tools",
    "console_page",
    "admission",
    "api_load",
    "clock",
    "live_against_virtual",
    "peers",
    "dynamo_mocker",
    "prefix_hits",
    "exact_day",
    "day_policies",
    "exact_handovers",
    "exact_loads",
    "plan_exhaustive",
    "plan_live",
    "big_checkpoint",
    "text_cost",
)


def main(names: list[str]) -> int:
    """Run them in turn; returns 1 when one failed."""
    if names and names[0] in LONG_NAMES:
        return _run(*names)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        expected = ", ".join((*NAMES, *LONG_NAMES))
        print(f"benchmarks: {unknown[0]}: expected one of {expected}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or NAMES:
        failed |= _run(name)
    return failed


def _run(name: str, *arguments: str) -> int:
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
    return int(subprocess.run(command, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
