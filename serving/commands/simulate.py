"""`ultraserve simulate`: serve traffic in virtual time, on a machine that is not there.

vLLM's scheduler, compiled, decides every step; the cost model times it. No server, no chips.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from serving.commands.analysis_options import (
    JsonOptions,
    WorkerOptions,
    check_absent,
    check_least,
    check_outputs,
    one_of,
    print_answer,
    say,
)
from serving.commands.simulated_events import SimulatedEventOptions, SimulatedPoolOptions
from serving.commands.simulated_files import SimulatedFileOptions, repeating_command
from serving.commands.simulated_handovers import SimulatedHandoverOptions
from serving.commands.simulated_traffic import (
    SimulatedTrafficOptions,
    add_traffic_arguments,
    simulated_traffic,
)
from serving.commands.simulation_watch import SimulationWatch
from serving.settings import PartitionOptions
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emulator.specs.partition import Partition
    from loadgen.measures.slo import Slo
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.simulate.simulated_report import SimulatedReport
    from serving.commands.simulated_traffic import SimulatedTraffic
    from serving.simulator import Run, SimulatedDeployment, StepWatcher, TimedCall
    from serving.simulator.day_night import SimulatedDayNight
    from serving.simulator.virtual_serving import Progress

_COMPILES: Final = "ultraserve simulate: compiling, once for this installation (some 10 s)"


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(
    SimulatedTrafficOptions,
    SimulatedPoolOptions,
    SimulatedEventOptions,
    SimulatedHandoverOptions,
    SimulatedFileOptions,
    JsonOptions,
    WorkerOptions,
    PartitionOptions,
):
    """All of a simulated run, or of several."""

    GROUP = PartitionOptions.GROUP

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    replicas: int = option(1, "equal engines, each of so many chips")
    router: str = option(
        "round-robin",
        "where a request goes that arrives: round-robin, least-loaded (fewest tokens held) or "
        "prefix-aware (fewest, less those of its prompt that are cached)",
        metavar="NAME",
    )

    seeds: int | None = option(
        None,
        "simulate so many times, with the seeds from --seed on: figures with their spread",
        metavar="N",
    )

    def __post_init__(self) -> None:
        kinds = (SimulatedTrafficOptions, SimulatedPoolOptions, SimulatedEventOptions)
        for each in (*kinds, SimulatedHandoverOptions, SimulatedFileOptions, WorkerOptions):
            each.__post_init__(self)
        check_least("seeds", self.seeds, 2)
        check_outputs(self)
        if self.seeds is None:
            expected = "nothing without --seeds: one run is one process's"
            check_absent(self, ("processes", "ray_address"), expected=expected)
        else:
            check_absent(self, ("results", "html"), expected="nothing beside --seeds, many runs")

    def deployment(self, schedulers: SchedulerLimits) -> SimulatedDeployment:
        """The machine; raises ConfigError."""
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.overlap import Overlap
        from emulator.specs.systems import system_by_name
        from serving.simulator import ReplicaSet, SimulatedDeployment

        system = with_assumptions(system_by_name(self.system), self.assumptions)

        def engines(partition: Partition, count: int) -> SimulatedDeployment:
            return SimulatedDeployment.of(
                system,
                self.model,
                partition,
                calibration=self.calibration,
                overlap=one_of(Overlap, "overlap", self.overlap),
                routing=self.routing or "uniform",
                schedulers=schedulers,
                replicas=ReplicaSet(count=count, router=self.router),
            )

        partition = self.partition(system)
        made = replace(engines(partition, self.replicas), prefill_ranks=self.prefill_ranks)
        prefill = self.prefill_partition(partition)
        if prefill is None:
            return made
        return replace(made, prefill=engines(prefill, self.prefill_replicas or 1))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `simulate` command."""
    parser = subparsers.add_parser(
        "simulate",
        help="serve traffic in virtual time: latencies, joules and tokens/s/MW in seconds",
        description="Serve traffic in virtual time on a machine of the catalog: vLLM's scheduler "
        "decides every step, the cost model times it. No server, no chips; modelled, not measured.",
        usage="ultraserve simulate --model NAME (--rate R | --concurrency N | --trace FILE) "
        "[OPTION ...]",
        epilog="Example: ultraserve simulate --model qwen3-30b-a3b --chips 144 --requests 50000 "
        "--rate 1440 --input 512 --output 512 --json",
    )
    add_options(parser, SimulateOptions)
    add_traffic_arguments(parser)
    add_options(parser, SchedulerLimits)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedQuestion:
    """What the arguments say: the machine, its traffic, what happens to it, and the target."""

    deployment: SimulatedDeployment
    planned: SimulatedTraffic
    calls: Sequence[TimedCall]
    day_night: SimulatedDayNight | None
    slo: Slo | None
    timeout_s: float | None
    seed: int

    @property
    def traffic(self) -> Traffic:
        """The requests."""
        return self.planned.traffic

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Raises UltraServeError, LoadError."""
        from serving.traffic.slo import parse_slo

        options = read_options(SimulateOptions, args)
        schedulers = read_options(SchedulerLimits, args)
        if (assumed := schedulers.published_acceptance()) is not None:
            say(assumed)
        deployment = options.deployment(schedulers)
        for changed in deployment.cost_model.system.turned_in_words():
            say(changed)
        context_tokens = deployment.cost_model.model.max_context_tokens
        planned = simulated_traffic(args, options, context_tokens=context_tokens)
        return cls(
            deployment=deployment,
            planned=planned,
            calls=options.timed_calls(deployment, seed=options.seed),
            day_night=options.day_night_settings(deployment, planned.traffic, slo=options.slo),
            slo=None if options.slo is None else parse_slo(options.slo),
            timeout_s=options.timeout,
            seed=options.seed,
        )

    def compiled(self, *, watched: bool = False) -> float:
        """Compile the kernels; returns the seconds that it took. `watched`: as `simulated`."""
        from serving.simulator import compile_kernels

        begun_s = time.perf_counter()
        compile_kernels(
            self.deployment,
            self.traffic,
            watched=watched,
            calls=len(self.calls) > 0 or self.day_night is not None,
            timeouts=self.timeout_s is not None,
            on_wait=lambda: say(_COMPILES),
        )
        return time.perf_counter() - begun_s

    def simulated(
        self,
        *,
        on_step: StepWatcher | None = None,
        progress: Progress | None = None,
        logs: bool = False,
    ) -> Run:
        """The run; its window begins with the first arrival.

        Steps and tokens are logged where `logs` asks for them, or requests wait for others.
        """
        from serving.simulator import simulate

        traffic = self.traffic
        return simulate(
            self.deployment,
            traffic,
            window_s=(float(traffic.arrival_s[0]) if len(traffic) else 0.0, float("inf")),
            calls=self.calls,
            timeout_s=self.timeout_s,
            seed=self.seed,
            on_step=on_step,
            progress=progress,
            day_night=self.day_night,
            logs=logs or traffic.sessions is not None or traffic.loops is not None,
        )

    def report(self, found: Run, *, compile_s: float, wall_s: float) -> SimulatedReport:
        """The figures of the run, and of each class where there are several."""
        from serving.analysis.simulate.simulated_report import class_shares, simulated_report

        report = simulated_report(
            found, self.deployment, slo=self.slo, compile_s=compile_s, wall_s=wall_s
        )
        sent = self.planned.of_run(found)
        if len(sent.classes) < 2:
            return report
        targets = {each.name: each.slo for each in sent.classes}
        return replace(report, classes=class_shares(found, sent.of_class, targets))


def run(args: argparse.Namespace) -> int:
    """Simulate, write the files, print; returns 0, or 130 or 143 for a part of the run.

    Raises UltraServeError, LoadError.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.simulate.simulated_record import SimulatedRecord
    from serving.analysis.simulate.simulated_report import simulated_document
    from serving.analysis.simulate.step_series import StepSeries

    options = read_options(SimulateOptions, args)
    if options.seeds is not None:
        from serving.commands.simulate_seeds import simulate_seeds

        return simulate_seeds(args, options)
    asked = SimulatedQuestion.of(args)
    deployment = asked.deployment
    steps = None if options.html is None else StepSeries(deployment.cost_model.idle_chip_watts)
    with options.writer() as writer:
        compile_s = asked.compiled(watched=steps is not None)
        started_at, begun_s = datetime.now(UTC), time.perf_counter()
        with SimulationWatch(len(asked.traffic)) as watch:
            found = asked.simulated(on_step=steps, progress=watch.look, logs=options.has_files)
            wall_s = time.perf_counter() - begun_s
            watch.clear()
            report = asked.report(found, compile_s=compile_s, wall_s=wall_s)
            sent = asked.planned.of_run(found)
            made = SimulatedRecord(
                run=found,
                deployment=deployment,
                classes=sent.headers(),
                of_class=sent.of_class,
                timeout_s=asked.timeout_s,
                command=repeating_command(args.words),
                seed=asked.seed,
                started_at=started_at.isoformat(timespec="seconds"),
                wall_s=wall_s,
            )
            options.write(made, report, steps, writer=writer, say=say)
    lines = document_lines(simulated_document(report))
    print_answer(lines, lambda: report, json=options.json)
    if watch.stopped is None:
        return 0
    say(f"ultraserve simulate: interrupted, {report.completed_requests:,} requests were served")
    return 128 + watch.stopped
