"""Runs of a plan of sessions: engines that go ahead until a router looks or turns come.

Each line serves the same requests twice in one process: with all tokens kept, as plans had them,
where one engine goes on to the next arrival or end and several make each step by itself; and
without, as plans have them now. Processor seconds, the least of three, and their ratio.
"""

import time
from dataclasses import replace

import numpy as np

from emulator.specs.partition import Partition
from loadgen.workloads.class_specs import workload_spec
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.session_demand import LatestReply, SessionDemand
from serving.simulator import ReplicaSet, Run, SchedulerLimits, SimulatedDeployment, simulate

LATEST = LatestReply(first_token_s=1.0, token_s=0.03)
ENGINES, REQUESTS = 5, 3_000


def demand() -> SessionDemand:
    """Conversations of 8 turns with 3 s between, 4 a second."""
    spec = workload_spec(
        {
            "input": "lognormal:500,250",
            "output": "lognormal:150,80",
            "turns": "8",
            "think_s": 3.0,
            "shared_prefix": (2_000, 1),
            "history": "served",
        }
    )
    return SessionDemand(sessions_per_s=4.0, workload=spec, latest=LATEST, context_tokens=131_072)


def timed(deployment: SimulatedDeployment, traffic: Traffic, *, logs: bool) -> tuple[float, Run]:
    """The least of three runs, after one that compiles."""
    run = simulate(deployment, traffic, logs=logs)
    seconds = []
    for _ in range(3):
        begun_s = time.process_time()
        simulate(deployment, traffic, logs=logs)
        seconds.append(time.process_time() - begun_s)
    return min(seconds), run


def run() -> None:
    """Print a line for each."""
    one = SimulatedDeployment.of(
        "trn3-nl72x2",
        "gpt-oss-120b",
        Partition(chips=4, tp=2, ep=4, lnc=2),
        schedulers=SchedulerLimits(prefill_policy="balanced:64:256:1024"),
    )
    of_sessions = demand()
    (share,) = of_sessions.shares(1, judged=600, lead_s=1.0, seed=1)
    sessions, prompts = share.traffic, of_sessions.peak.first(REQUESTS).sped_up(ENGINES)
    prompts = replace(prompts, output_tokens=np.ones_like(prompts.output_tokens))
    two, five = (
        replace(one, replicas=ReplicaSet(count=count, router="prefix-aware"))
        for count in (2, ENGINES)
    )
    for words, deployment, traffic in (
        ("sessions on one engine", one, sessions),
        ("sessions on two, prefix-aware", two, sessions),
        (f"prompts alone on {ENGINES}, prefix-aware", five, prompts),
    ):
        before_s, by_steps = timed(deployment, traffic, logs=True)
        after_s, ahead = timed(deployment, traffic, logs=False)
        assert ahead.ttft_s.tolist() == by_steps.ttft_s.tolist()
        assert ahead.e2e_s.tolist() == by_steps.e2e_s.tolist()
        print(
            f"{words:36} {len(traffic):6,} requests, {ahead.served.steps:6,} steps: "
            f"{before_s:6.2f} s, ahead {after_s:6.2f} s, ratio {before_s / after_s:5.1f}"
        )


if __name__ == "__main__":
    run()
