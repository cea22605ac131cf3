"""The same requests through `ultraserve serve` and through `simulate`, at three loads: once as they
are, and once with a chip that is lost and repaired, then one that leaves and comes back.

Each line is a percentile or the joules: live, virtual, difference. `engine`: by the stamps of the
engine; `client`: as the client saw it, the host's own work included; `trace`: the client's beside a
simulation of the trace at its own times, which other microseconds make another run.

    python -m tests.benchmarks live_against_virtual [--requests N] [--dilation K]
        [--prefill-ranks N] [SHARE ...]

Exit code 1 when a client's percentile is 2 % off, the joules 1 %, or the host did not keep up.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.simulator import SimulatedDeployment, TimedCall, simulate
from tests.e2e.live_and_virtual import (
    LatencyGaps,
    LiveRun,
    TokenTimes,
    TracedServer,
    chip_loss,
    hand_over,
    traced_server,
)

MODEL, CHIPS = "qwen3-30b-a3b", 4
LOADS = (0.1, 0.5, 0.85)
LENGTHS = IndependentLengths(
    prompt=parse_lengths("lognormal:300,150,1-2000"),
    output=parse_lengths("lognormal:100,60,1-1000"),
)
LATENCY_GAP_MAX, JOULES_GAP_MAX = 0.02, 0.01


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="live_against_virtual", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--dilation", type=float, default=40.0)
    parser.add_argument("--prefill-ranks", type=int, default=0)
    parser.add_argument("loads", nargs="*", type=float, metavar="SHARE", default=LOADS)
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        Partition(chips=CHIPS, ep=CHIPS, lnc=2),
        prefill_ranks=args.prefill_ranks,
    )
    many = Traffic.drawn(rate_per_s=1e5, lengths=LENGTHS, seed=0, requests=10 * args.requests)
    sustained_per_s = len(many) / simulate(deployment, many).served.emulated_s
    print(f"{MODEL} on {CHIPS} chips sustains {sustained_per_s:.1f} requests/s")
    roles = ("--prefill-ranks", str(args.prefill_ranks))
    flags = ("--model", MODEL, "--chips", str(CHIPS), "--weights", "none", *roles)
    missed = 0
    with traced_server(*flags, "--clock", f"dilated:{args.dilation:g}") as server:
        for seed, load in enumerate(args.loads):
            asked = Traffic.drawn(
                rate_per_s=load * sustained_per_s,
                lengths=LENGTHS,
                seed=seed,
                requests=args.requests,
            )
            span_s = asked.span_s
            events = [
                *chip_loss(0.2 * span_s, 0.4 * span_s),
                *hand_over(0.6 * span_s, 0.8 * span_s),
            ]
            for half, calls in enumerate(([], events)):
                words = " with a chip loss and a hand-over" if calls else ""
                rate = f"{load * sustained_per_s:.1f} requests/s"
                print(f"\n{load:.0%}: {rate}{words}", flush=True)
                missed += not compare(server, deployment, asked, seed=2 * seed + half, calls=calls)
    return int(missed > 0)


def compare(
    server: TracedServer,
    deployment: SimulatedDeployment,
    asked: Traffic,
    *,
    seed: int,
    calls: Sequence[TimedCall],
) -> bool:
    """Serve and simulate; prints the gaps, and returns whether the bars hold."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        live = LiveRun.of(*server.serve(asked, Path(folder), seed=seed, calls=calls))
    virtual = simulate(deployment, live.arrivals, calls=live.calls)
    times = live.simulated(virtual.served)
    own = TokenTimes.simulated(simulate(deployment, asked, calls=calls).served)
    client = LatencyGaps.between(live.client, times)
    print_gaps("engine", LatencyGaps.between(live.engine, times))
    print_gaps("client", client)
    print_gaps("trace", LatencyGaps.between(live.client, own))
    joules, virtual_joules = live.joules(virtual, deployment)
    gap = joules / virtual_joules - 1.0
    print(f"joules           {joules:12.1f} J  {virtual_joules:12.1f} J  {gap:+9.4%}")
    apart_s = np.abs(np.concatenate([live.engine.first_s, live.engine.last_s]))
    apart_s = np.abs(apart_s - np.concatenate([times.first_s, times.last_s]))
    back_ms = 1e3 * (live.client.first_s - live.engine.first_s)
    print(
        f"{int((apart_s < 1e-9).sum())} of {len(apart_s)} first and last tokens at the same "
        f"nanosecond; the way to the client p50 {np.percentile(back_ms, 50):.3f}, "
        f"p99 {np.percentile(back_ms, 99):.3f} emulated ms; lag {live.lag_s:g} s; "
        f"{time.monotonic() - begun_s:.0f} s of wall time",
        flush=True,
    )
    return client.most < LATENCY_GAP_MAX and abs(gap) < JOULES_GAP_MAX and not live.lag_s


def print_gaps(name: str, gaps: LatencyGaps) -> None:
    for each, gap in gaps.relative().items():
        live_ms, virtual_ms = 1e3 * gaps.live[each], 1e3 * gaps.virtual[each]
        print(f"{name:6s} {each:9s} {live_ms:12.3f} ms {virtual_ms:12.3f} ms {gap:+9.4%}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
