"""`ultraserve simulate`: serve traffic in virtual time, on a machine that is not there.

vLLM's scheduler, compiled, decides every step; the cost model times it. No server, no chips.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from emulator.errors import ConfigError
from loadgen.arrivals.arrival_spec import Gaps
from reporting.data_forms import json_text
from serving.commands.analysis_options import JsonOptions, check_least, one_of, say
from serving.settings import PartitionOptions
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from loadgen.workloads.traffic import Traffic
    from serving.simulator import SimulatedDeployment

_REQUESTS, _LENGTHS = 1_000, "512"
_OF_RATE: Final = ("input", "output", "gaps", "burstiness")
_OF_TRACE: Final = ("speedup",)
_SHOWN_EVERY_S: Final = 0.5
_INTERRUPTED: Final = 130


@dataclass(frozen=True, kw_only=True)
class SimulatedTrafficOptions:
    """The traffic, in the load generator's words."""

    GROUP = "traffic"

    trace: Path | None = option(
        None,
        "recorded, at its own times: Azure's CSV, Mooncake's JSON lines or BurstGPT's CSV",
        one_of="source",
        needs_one=True,
    )
    rate: float | None = option(None, "requests per second", metavar="R", one_of="source")
    speedup: float | None = option(None, "of a trace: its times over X", metavar="X")
    gaps: Gaps | None = option(
        None,
        "gaps at a rate: exponential, even, or gamma distributed (default: poisson)",
        "--arrivals",
    )
    burstiness: float | None = option(
        None, "shape of the gamma gaps: CV 1 / sqrt(K) (default: 1)", metavar="K"
    )
    requests: int | None = option(
        None, f"of a rate, or the first of a trace (default: {_REQUESTS:,}, or all)"
    )
    input: str | None = option(
        None, f"prompt tokens, as of `ultraserve-loadgen` (default: {_LENGTHS})", metavar="LENGTHS"
    )
    output: str | None = option(None, f"reply tokens (default: {_LENGTHS})", metavar="LENGTHS")
    seed: int = option(0, "of arrivals and lengths")

    def __post_init__(self) -> None:
        check_least("seed", self.seed, 0)
        check_least("requests", self.requests, 1)
        # An option of the other kind of traffic would silently do nothing.
        names, source = (_OF_RATE, "--trace") if self.trace else (_OF_TRACE, "--rate")
        for name in names:
            value = getattr(self, name)
            if value is not None:
                field = "arrivals" if name == "gaps" else name
                raise ConfigError(field=field, value=value, expected=f"nothing beside {source}")

    def traffic(self, context_tokens: int) -> Traffic:
        """The requests, of a trace those within the context; raises LoadError, ConfigError."""
        from loadgen.workloads.length_pairs import IndependentLengths
        from loadgen.workloads.lengths import parse_lengths
        from loadgen.workloads.traffic import Traffic

        if self.trace is not None:
            recorded = Traffic.recorded(self.trace)
            recorded = recorded if self.requests is None else recorded.first(self.requests)
            within = recorded.within_context(context_tokens)
            if len(within) < len(recorded):
                dropped = len(recorded) - len(within)
                say(f"ultraserve simulate: {dropped:,} requests longer than the context left out")
            return within if self.speedup is None else within.sped_up(self.speedup)
        assert self.rate is not None  # the parser asks for it or for a trace
        lengths = IndependentLengths(
            prompt=parse_lengths(self.input or _LENGTHS, option="--input"),
            output=parse_lengths(self.output or _LENGTHS, option="--output"),
        )
        return Traffic.drawn(
            rate_per_s=self.rate,
            lengths=lengths,
            seed=self.seed,
            requests=_REQUESTS if self.requests is None else self.requests,
            gaps=self.gaps or "poisson",
            burstiness=1.0 if self.burstiness is None else self.burstiness,
        )


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(SimulatedTrafficOptions, JsonOptions, PartitionOptions):
    """All of a simulated run."""

    GROUP = PartitionOptions.GROUP

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    replicas: int = option(1, "equal engines, each of so many chips")
    router: str = option(
        "round-robin",
        "where a request goes that arrives: round-robin, least-loaded (fewest tokens held) or "
        "prefix-aware (fewest, less those of its prompt that are cached)",
        metavar="NAME",
    )
    slo: str | None = option(
        None, "a target, such as ttft=500ms,tpot=30ms@p99: the share that keeps it", metavar="SLO"
    )

    def deployment(self, schedulers: SchedulerLimits) -> SimulatedDeployment:
        """The machine; raises ConfigError."""
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.overlap import Overlap
        from emulator.specs.partition import Partition
        from emulator.specs.systems import system_by_name
        from serving.simulator import ReplicaSet, SimulatedDeployment

        system = with_assumptions(system_by_name(self.system), self.assumptions)
        return SimulatedDeployment.of(
            system,
            self.model,
            Partition(
                chips=self.chips,
                tp=self.tp,
                ep=self.chips if self.ep is None else self.ep,
                lnc=system.chip.default_lnc.count if self.lnc is None else self.lnc,
            ),
            calibration=self.calibration,
            overlap=one_of(Overlap, "overlap", self.overlap),
            routing=self.routing or "uniform",
            schedulers=schedulers,
            replicas=ReplicaSet(count=self.replicas, router=self.router),
        )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `simulate` command."""
    parser = subparsers.add_parser(
        "simulate",
        help="serve traffic in virtual time: latencies, joules and tokens/s/MW in seconds",
        description="Serve traffic in virtual time on a machine of the catalog: vLLM's scheduler "
        "decides every step, the cost model times it. No server, no chips; modelled, not measured.",
        epilog="Example: ultraserve simulate --model qwen3-30b-a3b --chips 144 --requests 50000 "
        "--rate 1440 --input 512 --output 512 --json",
    )
    add_options(parser, SimulateOptions)
    add_options(parser, SchedulerLimits, defaults={"max_num_seqs": 256})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; returns 0, or 130 for a part of the run.

    Raises UltraServeError, LoadError.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.simulate.simulated_report import simulated_document, simulated_report
    from serving.simulator import simulate
    from serving.traffic.slo import parse_slo

    options = read_options(SimulateOptions, args)
    slo = None if options.slo is None else parse_slo(options.slo)
    deployment = options.deployment(read_options(SchedulerLimits, args))
    traffic = options.traffic(deployment.cost_model.model.max_context_tokens)
    begun_s = time.perf_counter()
    simulate(deployment, traffic.first(1))  # compiles, or reads what was compiled before
    compiled_s = time.perf_counter()
    with _Watch(len(traffic)) as watch:
        found = simulate(deployment, traffic, progress=watch.look)
    report = simulated_report(
        found,
        deployment,
        slo=slo,
        compile_s=compiled_s - begun_s,
        wall_s=time.perf_counter() - compiled_s,
    )
    lines = document_lines(simulated_document(report))
    print(json_text(report) if options.json else "\n".join(lines))
    if watch.stopped:
        say(f"ultraserve simulate: interrupted, {report.completed_requests:,} requests were served")
    return _INTERRUPTED if watch.stopped else 0


class _Watch:
    """Shows how far a run is, on a terminal; the first Ctrl-C ends it with what there is."""

    def __init__(self, requests: int) -> None:
        self.stopped = False
        self._requests = requests
        self._shown_s = time.perf_counter()
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _stop(self, *_: object) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, self._before)  # a second one does not wait

    def look(self, done: int, emulated_s: float) -> None:
        """Show progress twice a second; raises StopSimulation after a Ctrl-C."""
        from serving.simulator import StopSimulation

        if self.stopped:
            raise StopSimulation
        if self._shows and time.perf_counter() - self._shown_s > _SHOWN_EVERY_S:
            self._shown_s = time.perf_counter()
            shown = f"\r{done:,} of {self._requests:,} requests, {emulated_s:,.1f} s emulated"
            print(shown, end="", file=sys.stderr, flush=True)
