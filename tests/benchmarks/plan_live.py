"""A plan's promise kept by a server: one replica of what `plan` chooses, served with timing only.

The question is planned; a server of one replica, with the partition, prefill policy and batch
limits of the answer, gets that replica's share of Poisson arrivals. TTFT and TPOT at p50 and p99,
as the client saw them, stand beside those that the plan promised, of other requests, and beside a
simulation of the same ones.

    python -m tests.benchmarks plan_live [--requests N] [--dilation K]

Exit code 1 when a p99 is more than 5 % from the promise, or the host did not keep up.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path
from typing import Final

from serving.analysis.plan.plan import plan
from serving.analysis.plan.plan_check import SHOWN_PERCENTILES, SizeTask, deployment_of
from serving.analysis.plan.plan_race import Race
from serving.commands.plan import question_of
from serving.main import command_parser
from serving.simulator import THIS_PROCESS, simulate
from tests.e2e.live_and_virtual import LatencyGaps, LiveRun, traced_server

MODEL: Final = "qwen3-30b-a3b"
QUESTION: Final = (
    *("--model", MODEL, "--rate", "60", "--slo", "ttft=250ms,tpot=20ms@p99"),
    *("--input", "lognormal:300,150,1-2000", "--output", "lognormal:40,20,1-200"),
    *("--no-pools", "--chips", "1,2,4,8", "--budget", "30s"),
)
SEED: Final = 1_000
APART_MAX: Final = 0.05


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="plan_live", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--dilation", type=float, default=10.0)
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    question = question_of(command_parser().parse_args(["plan", *QUESTION]))
    choice = plan(question).choice
    setting, check = choice.setting, choice.check
    print(f"plan: {setting.words}", flush=True)
    (share, *_) = question.demand.shares(
        setting.replicas, judged=args.requests, lead_s=0.0, seed=SEED
    )
    task = Race(question, THIS_PROCESS, progress=lambda _: None).task(setting, judged=args.requests)
    with (
        traced_server(*_flags(task), "--clock", f"dilated:{args.dilation:g}") as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        live = LiveRun.of(*server.serve(share.traffic, Path(folder), seed=SEED))
    virtual = simulate(deployment_of(task, share.traffic), live.arrivals)
    gaps = LatencyGaps.between(live.client, live.simulated(virtual.served))
    most = 0.0
    for (name, live_s), virtual_s in zip(gaps.live.items(), gaps.virtual.values(), strict=True):
        measure, percentile = name.split(" p")
        promises = dict(zip(SHOWN_PERCENTILES, check.percentiles_s[measure], strict=True))
        promise = promises[float(percentile)]
        assert promise is not None
        above = live_s / promise.value - 1
        print(
            f"{name:9s} live {1e3 * live_s:10.2f} ms, promised {1e3 * promise.value:10.2f} "
            f"({above:+.2%}), simulated {1e3 * virtual_s:10.2f}"
        )
        if measure != "e2e" and percentile == "99":
            most = max(most, abs(above))
    print(f"{len(share.traffic):,} requests, lag {live.lag_s:g} s")
    return int(most > APART_MAX or live.lag_s > 0)


def _flags(task: SizeTask) -> list[str]:
    """Of a server with the partition, policy and limits of `task`."""
    partition, schedulers = task.candidate.partition, task.terms.schedulers
    flags = {
        "--model": MODEL,
        "--chips": partition.chips,
        "--tp": partition.tp,
        "--ep": partition.ep,
        "--lnc": partition.lnc,
        "--attention-split": partition.attention_split,
        "--prefill-policy": schedulers.prefill_policy,
        "--max-num-seqs": schedulers.max_num_seqs,
        "--max-num-batched-tokens": schedulers.max_num_batched_tokens,
        "--weights": "none",
    }
    return [str(each) for flag in flags.items() for each in flag]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
