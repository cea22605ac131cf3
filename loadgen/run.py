"""One run from its options to its report: asks the server, attacks it, and reports.

A thin shell around the pure parts; what can be wrong with a figure is decided elsewhere.
"""

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import aiohttp
from rich.console import Console

from loadgen.attack import Attack, AttackLimits, AttackSummary
from loadgen.clients.openai_http import new_session
from loadgen.errors import OptionError, ServerError
from loadgen.measure import measure
from loadgen.options import RunOptions
from loadgen.pacer import ClosedLoop, Pacer, constant_rate, poisson, recorded
from loadgen.preparation import Prepared, prepare
from loadgen.progress import ProgressSettings, show_progress
from loadgen.report import Report, WorkloadSummary, to_json
from loadgen.report_table import print_report
from loadgen.result import Result
from loadgen.sample_trace import BUNDLED_TRACE
from loadgen.server_clock import ServerReading, ServerWindow, read_server
from loadgen.trace import TraceRow

EXIT_OK: Final = 0
EXIT_REQUESTS_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130  # as a shell reports a program that was ended by Ctrl-C

PLAIN_WIDTH: Final = 110  # columns of a report that goes to a file


async def run(options: RunOptions, command: str, *, key: str = "") -> int:
    """Do the run and print its report; returns the exit code.

    `key` is the server's for this client, and is in no report. Raises LoadError when nothing could
    be sent. A server that fails later is in the report.
    """
    results: list[Result] = []
    async with new_session(key=key) as session:
        with _results_sink(options, results) as sink:
            prepared = await prepare(session, options)
            summary = await _attack(prepared, options, sink)
        end = await _end_reading(session, options.url)
    server = ServerWindow(start=prepared.start, end=end)
    report = Report(
        command=command,
        measures=measure(results, server),
        server=server,
        workload=_workload_summary(prepared, options, server),
        cuts=prepared.cuts,
        attack=summary,
        example_errors={r.error: r.message for r in reversed(results) if r.error is not None},
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    print_report(report, console)
    if options.json is not None:
        with _opened(options.json, "--json") as file:
            file.write(to_json(report).encode())
    if summary.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_REQUESTS_FAILED if report.measures.failed_requests else EXIT_OK


async def _end_reading(session: aiohttp.ClientSession, url: str) -> ServerReading:
    """Read the server's meters; by now a failure is a note in the report, no reason to lose it."""
    try:
        return await read_server(session, url)
    except ServerError as error:
        return ServerReading(problem=error.reason)


async def _attack(
    prepared: Prepared, options: RunOptions, sink: Callable[[Result], None]
) -> AttackSummary:
    """Attack with progress shown; Ctrl-C, or SIGTERM, ends it early and in good order."""
    dilation = prepared.start.dilation or 1.0
    time_word = "wall" if prepared.start.dilation is None else "emulated"
    counts = prepared.counts

    def on_result(result: Result) -> None:
        sink(result)
        counts.add_result(result)

    attack = Attack(
        workload=prepared.workload,
        pacer=_pacer(options, prepared.workload.rows),
        client=prepared.client,
        limits=AttackLimits(
            wall_per_pace=1.0 if options.wall_time else dilation,
            max_in_flight=options.max_in_flight,
        ),
        dilation=dilation,
        sink=on_result,
    )
    settings = ProgressSettings(
        console=Console(stderr=True), time_word=time_word, dilation=dilation, quiet=options.quiet
    )
    # What is there by now stays: without this the collector would go through all of it again and
    # again, for milliseconds each time, while latencies are measured.
    gc.freeze()
    with _stopped_by_signals(attack.stop):
        progress = asyncio.create_task(show_progress(counts, settings))
        try:
            return await attack.run()
        finally:
            progress.cancel()
            with suppress(asyncio.CancelledError):
                await progress


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def _results_sink(options: RunOptions, results: list[Result]) -> Iterator[Callable[[Result], None]]:
    """Give a function that keeps a result, and writes its line at once if a file was asked for."""
    if options.results is None:
        yield results.append
        return
    with _opened(options.results, "--results") as file:

        def keep(result: Result) -> None:
            results.append(result)
            file.write(result.to_json_line())
            file.flush()

        yield keep


def _opened(path: Path, option: str) -> BinaryIO:
    """Open the file for writing; raises OptionError if that is not possible."""
    try:
        return path.open("wb")
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise OptionError(option=option, value=path, expected=expected) from error


def _pacer(options: RunOptions, rows: tuple[TraceRow, ...]) -> Pacer:
    if options.concurrency is not None:
        return ClosedLoop(concurrency=options.concurrency)
    if options.rate_per_s is None:
        return recorded([row.arrival_ns for row in rows], speedup=options.speedup)
    if options.arrivals == "constant":
        return constant_rate(len(rows), rate_per_s=options.rate_per_s)
    return poisson(len(rows), rate_per_s=options.rate_per_s, seed=options.seed)


def _arrivals(options: RunOptions, time_word: str) -> str:
    """Say in words when requests were sent."""
    if options.concurrency is not None:
        return f"closed loop, {options.concurrency} in flight"
    second = "wall s" if options.wall_time else f"{time_word} s"
    if options.rate_per_s is None:
        return f"recorded times, {options.speedup:g} times as fast, in {second}"
    gaps = "even gaps" if options.arrivals == "constant" else "Poisson"
    return f"{gaps}, {options.rate_per_s:g} requests per {second}"


def _workload_summary(
    prepared: Prepared, options: RunOptions, server: ServerWindow
) -> WorkloadSummary:
    bundled = options.trace == BUNDLED_TRACE
    if options.prompts == "text":
        prompts = "text, a word for each token asked"
    else:
        prompts = "token ids, of exact length by the server's tokenizer"
    return WorkloadSummary(
        url=options.url,
        model=prepared.model,
        trace="bundled synthetic trace" if bundled else str(options.trace),
        arrivals=_arrivals(options, "emulated" if server.emulated else "wall"),
        prompts=prompts,
        seed=options.seed,
        requests=len(prepared.workload),
        repeated_heads=prepared.workload.repeated_heads,
        warmup_requests=options.warmup,
        warmup_problem=prepared.warmup_problem,
    )
