"""One run from its options to its report: asks the server, attacks it, and reports.

A thin shell around the pure parts; what can be wrong with a figure is decided elsewhere.
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

import aiohttp
from rich.console import Console

from loadgen.attack import Attack, AttackLimits, AttackSummary
from loadgen.clients.client import Client
from loadgen.clients.openai_http import CompletionOptions, OpenAIHttpClient, new_session
from loadgen.clients.server_facts import served_model, tokenised_pool
from loadgen.errors import OptionError, ServerError
from loadgen.measure import measure
from loadgen.options import RunOptions
from loadgen.pacer import ClosedLoop, Pacer, constant_rate, poisson, recorded
from loadgen.progress import LiveCounts, ProgressSettings, show_progress
from loadgen.prompt_pool import PromptPool
from loadgen.prompt_text import paragraphs
from loadgen.report import Report, WorkloadSummary, to_json
from loadgen.report_table import print_report
from loadgen.result import Result
from loadgen.sample_trace import BUNDLED_TRACE
from loadgen.server_clock import ServerReading, ServerWindow, read_server
from loadgen.trace import TraceRow, read_azure2023
from loadgen.workload import LengthCuts, Workload, cut_lengths, make_workload

EXIT_OK: Final = 0
EXIT_REQUESTS_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130  # as a shell reports a program that was ended by Ctrl-C

PLAIN_WIDTH: Final = 110  # columns of a report that goes to a file
WORDS_IN_A_PARAGRAPH_MIN: Final = 4
POOL_TOKENS_PER_REQUEST: Final = 2  # places for a window to begin at; a few have to be given up


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A server that has been asked everything, and what to send it."""

    model: str
    workload: Workload
    client: Client
    counts: LiveCounts
    start: ServerReading
    warmup_problem: str


async def run(options: RunOptions, command: str) -> int:
    """Do the run and print its report; returns the exit code.

    Raises LoadError when nothing could be sent. A server that fails later is in the report.
    """
    rows, cuts = _rows(options)
    results: list[Result] = []
    async with new_session() as session:
        with _results_sink(options, results) as sink:
            prepared = await _prepare(session, options, rows)
            summary = await _attack(prepared, options, sink)
        end = await read_server(session, options.url)
    server = ServerWindow(start=prepared.start, end=end)
    report = Report(
        command=command,
        measures=measure(results, server),
        server=server,
        workload=_workload_summary(prepared, options, server),
        cuts=cuts,
        attack=summary,
        example_errors={r.error: r.message for r in reversed(results) if r.error is not None},
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    print_report(report, console)
    if options.json is not None:
        options.json.write_text(to_json(report))
    if summary.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_REQUESTS_FAILED if report.measures.failed_requests else EXIT_OK


def _rows(options: RunOptions) -> tuple[tuple[TraceRow, ...], LengthCuts]:
    rows = read_azure2023(options.trace)
    if options.requests is not None and options.requests > len(rows):
        expected = f"at most {len(rows)}, the rows of {options.trace}"
        raise OptionError(option="--requests", value=options.requests, expected=expected)
    return cut_lengths(
        rows[: options.requests],
        max_input_tokens=options.max_input_tokens,
        max_output_tokens=options.max_output_tokens,
    )


async def _prepare(
    session: aiohttp.ClientSession, options: RunOptions, rows: tuple[TraceRow, ...]
) -> _Prepared:
    """Ask the server its model, tokens and clock; make the workload; warm up."""
    model = await served_model(session, options.url, options.model)
    pool = await _pool(session, options, model.name, rows)
    workload = make_workload(rows, pool, warmups=options.warmup, seed=options.seed)
    _warn_of_long_requests(rows, model.context_tokens)
    counts = LiveCounts(total=len(rows), total_tokens=sum(row.output_tokens for row in rows))
    client = OpenAIHttpClient(
        session,
        url=options.url,
        options=CompletionOptions(
            model=model.name,
            timeout_s=options.timeout_s,
            ignore_eos=options.ignore_eos,
            temperature=options.temperature,
        ),
        on_chunks=counts.add_chunks,
    )
    warmup_problem = await _warm_up(client, workload, options.warmup)
    counts.chunks = 0
    return _Prepared(
        model=model.name,
        workload=workload,
        client=client,
        counts=counts,
        # After the warm-up: the meters of an idle server may stand at its last step's end.
        start=await read_server(session, options.url),
        warmup_problem=warmup_problem,
    )


async def _pool(
    session: aiohttp.ClientSession, options: RunOptions, model: str, rows: tuple[TraceRow, ...]
) -> PromptPool:
    """Make the run of tokens that prompts are cut from: as long as the longest of them."""
    places = POOL_TOKENS_PER_REQUEST * (len(rows) + options.warmup)
    min_tokens = max(places, *(row.input_tokens for row in rows))
    text = paragraphs(options.seed)
    if options.prompts == "text":
        enough = islice(text, min_tokens // WORDS_IN_A_PARAGRAPH_MIN + 1)
        return PromptPool.of_words("".join(enough))
    try:
        return await tokenised_pool(
            session, options.url, model=model, text=text, min_tokens=min_tokens
        )
    except ServerError as error:
        raise ServerError(
            url=error.url, reason=f"{error.reason}; --prompts text needs no tokenizer"
        ) from error


def _warn_of_long_requests(rows: tuple[TraceRow, ...], context_tokens: int | None) -> None:
    if context_tokens is None:
        return
    long = sum(row.input_tokens + row.output_tokens > context_tokens for row in rows)
    if long:
        print(
            f"ultraserve-loadgen: {long} requests are longer than the model's context of "
            f"{context_tokens:,} tokens and will be refused; --max-input-tokens cuts them",
            file=sys.stderr,
        )


async def _warm_up(client: Client, workload: Workload, warmups: int) -> str:
    """Send the warm-up requests; returns the last failure in words, or nothing."""
    problem = ""
    for index in range(warmups):
        reply = await client.send(workload.warmup_request(index))
        if reply.error is not None:
            problem = f"{reply.error}: {reply.message}"
    return problem


async def _attack(
    prepared: _Prepared, options: RunOptions, sink: Callable[[Result], None]
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
    with options.results.open("wb") as file:

        def keep(result: Result) -> None:
            results.append(result)
            file.write(result.to_json_line())
            file.flush()

        yield keep


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
    prepared: _Prepared, options: RunOptions, server: ServerWindow
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
