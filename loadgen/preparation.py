"""What comes before the first request of a run: the trace, the server's facts, prompts, a warm-up.

Whatever can stop a run stops it here, before anything is measured.
"""

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Final

import aiohttp

from loadgen.clients.client import Client
from loadgen.clients.openai_http import CompletionOptions, OpenAIHttpClient
from loadgen.clients.server_facts import served_model, tokenised_pool
from loadgen.errors import OptionError, ServerError
from loadgen.options import RunOptions
from loadgen.progress import LiveCounts
from loadgen.prompt_pool import PromptPool
from loadgen.prompt_text import paragraphs
from loadgen.server_clock import ServerReading, read_server
from loadgen.trace import TraceRow, read_azure2023
from loadgen.workload import LengthCuts, Workload, cut_lengths, make_workload

WORDS_IN_A_PARAGRAPH_MIN: Final = 4
POOL_TOKENS_PER_REQUEST: Final = 2  # places for a window to begin at; a few have to be given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A server that has been asked everything and is warm, and what to send it.

    `start` is the reading of its meters at the start of the measured window; `warmup_problem` is
    empty, or the warm-up's failure in words.
    """

    model: str
    workload: Workload
    cuts: LengthCuts
    client: Client
    counts: LiveCounts
    start: ServerReading
    warmup_problem: str


async def prepare(session: aiohttp.ClientSession, options: RunOptions) -> Prepared:
    """Read the trace, ask the server its model, tokens and clock, make the workload, warm up.

    Raises LoadError for a trace, an option or a server that cannot be used.
    """
    rows, cuts = _rows(options)
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
    return Prepared(
        model=model.name,
        workload=workload,
        cuts=cuts,
        client=client,
        counts=counts,
        # After the warm-up: the meters of an idle server may stand at its last step's end.
        start=await read_server(session, options.url, must_answer=True),
        warmup_problem=warmup_problem,
    )


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
