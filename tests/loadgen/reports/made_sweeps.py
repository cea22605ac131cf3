"""Sweeps for the reports' tests: a server of about 40 requests a second."""

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import (
    BestLoad,
    BoundShare,
    Knee,
    PointFigures,
    SaturationFound,
    SweepPoint,
    SweepRecord,
)

CAPACITY_PER_S = 40.0


def measured(value: float, *, share: float = 0.05) -> Estimate:
    """A figure with an interval of that share on both sides."""
    return Estimate(value=value, low=value * (1 - share), high=value * (1 + share))


def point(load: float) -> SweepPoint:
    """Roughly a queue that serves CAPACITY_PER_S."""
    done = min(load, CAPACITY_PER_S)
    wait = 1 / max(1 - load / CAPACITY_PER_S, 0.02)
    kept = load <= 25
    return SweepPoint(
        load=load,
        stage="grid",
        results=f"rate-{load:g}.jsonl",
        seed=0,
        requests=500,
        figures=PointFigures(
            requests_per_s=measured(done),
            sent_per_s=load,
            output_tokens_per_s=measured(done * 128),
            goodput_per_s=measured(done if kept else done / 3),
            ttft_p50_ms=measured(30 * wait),
            ttft_p99_ms=measured(70 * wait, share=0.2),
            tpot_p50_ms=measured(8 + load / 4),
            tpot_p99_ms=measured(10 + load / 3),
            e2e_mean_ms=measured(30 * wait + 127 * (8 + load / 4)),
            e2e_p50_ms=measured(30 * wait + 127 * (8 + load / 4)),
            e2e_p99_ms=measured(70 * wait + 127 * (10 + load / 3)),
            interactivity_p50=measured(1_000 / (8 + load / 4)),
            tokens_per_s_per_mw=done * 128 / (0.004 + 0.0001 * done),
            tokens_per_s_per_chip=done * 32 - (load > CAPACITY_PER_S) * 20,
            average_watts=4_000 + 100 * done,
            failed_share=0.02 if load > CAPACITY_PER_S else 0.0,
        ),
        saturation=SaturationFound(over=load > CAPACITY_PER_S, words="the backlog grew"),
        bounds=(
            BoundShare(
                traffic_class="default",
                words="TTFT <= 200 ms",
                needed=0.99,
                share=0.998 if kept else 0.91,
                low=0.992 if kept else 0.88,
                high=0.9995 if kept else 0.94,
                samples=500,
                effective=312.0,
                verdict="kept" if kept else "missed",
            ),
        ),
        verdict="kept" if kept else "missed",
    )


def made_sweep(loads: tuple[float, ...] = (2, 4, 8, 16, 24, 32, 36, 48)) -> SweepRecord:
    return SweepRecord(
        command="ultraserve-loadgen sweep --url http://127.0.0.1:8000 --rates 2-48x2",
        url="http://127.0.0.1:8000",
        model="qwen3-30b-a3b",
        axis="rate",
        time="emulated",
        workload="input 512, output 128",
        started_at="2026-01-02T03:04:05+00:00",
        points=tuple(point(load) for load in loads),
        stopped="48 sessions/s are more than the server can do",
        knee=Knee(
            load=24.0,
            requests_per_s=24.0,
            e2e_mean_ms=1_853.0,
            power=12.9,
            low=16.0,
            high=32.0,
            at_edge=False,
        ),
        best=BestLoad(
            load=24.0,
            above=32.0,
            slo="ttft=200ms@p99",
            confidence=0.95,
            words="32 missed it",
        ),
        highest_requests_per_s=measured(CAPACITY_PER_S),
        pareto_per_mw=tuple(range(len(loads) - 1)),
        pareto_per_chip=tuple(range(len(loads) - 1)),
    )
