"""What comes before the first request of a run: the server's facts, the classes, a warm-up.

Whatever can stop a run stops it here, before anything is measured.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from loadgen.attack.job import Job
from loadgen.clients.client_spec import ClientSpec
from loadgen.clients.open_client import open_client
from loadgen.clients.server_clock import read_server
from loadgen.clients.server_facts import served_model
from loadgen.clients.server_tokenizer import ServerTokenizer
from loadgen.errors import OptionError, ServerError
from loadgen.live.live_counts import LiveCounts
from loadgen.prompts.local_tokenizer import LocalTokenizer
from loadgen.prompts.word_tokenizer import WordTokenizer
from loadgen.records.run_record import RunHeader
from loadgen.records.tokenizer import Tokenizer
from loadgen.runs.class_plan import ClassPlan, class_seeds, plan_class
from loadgen.runs.open_files import allow_connections
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A server that has been asked everything and is warm, and what to send it.

    `header.start` is the reading of its meters at the start of the run.
    """

    header: RunHeader
    job: Job
    tokenizer: Tokenizer


async def prepare(
    session: aiohttp.ClientSession,
    options: RunOptions,
    *,
    command: str,
    key: str,
    live: LiveCounts,
) -> Prepared:
    """Ask the server its model, tokens and clock, plan every class, and warm up.

    Raises LoadError for a trace, an option or a server that cannot be used.
    """
    live.say("asking the server")
    url = options.server.url
    model = await served_model(session, url, options.server.model)
    tokenizer = _tokenizer(session, options.server, model.name)
    live.say("making prompts")
    plans = await _plans(options, tokenizer)
    specs = [_client_spec(each, options.server, model.name, key) for each in options.classes]
    live.say("warming up")
    notes = await _warm_up(list(zip(plans, specs, strict=True)), options.warmup)
    # After the warm-up: the meters of an idle server may stand at its last step's end.
    start = await read_server(session, url, must_answer=True)
    dilation = start.dilation or 1.0
    headers = tuple(
        plan.header(emulated=start.dilation is not None, context_tokens=model.context_tokens)
        for plan in plans
    )
    traffics = [(plan.traffic(dilation), spec) for plan, spec in zip(plans, specs, strict=True)]
    at_once = sum(traffic.max_in_flight for traffic, _ in traffics)
    allow_connections(-(-at_once // options.workers))
    return Prepared(
        header=RunHeader(
            command=command,
            url=url,
            model=model.name,
            seed=options.seed,
            workers=options.workers,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            classes=headers,
            start=start,
            skip_s=options.skip_s,
            label=options.label,
            notes=tuple(notes),
        ),
        job=Job(
            traffics=traffics,
            dilation=dilation,
        ),
        tokenizer=tokenizer,
    )


def _tokenizer(session: aiohttp.ClientSession, server: ServerOptions, model: str) -> Tokenizer:
    if server.count_words:
        return WordTokenizer()
    if server.tokenizer is not None:
        return LocalTokenizer(server.tokenizer)
    return ServerTokenizer(session, url=server.url, model=model)


async def _plans(options: RunOptions, tokenizer: Tokenizer) -> list[ClassPlan]:
    seeds = class_seeds(options.seed, len(options.classes))
    # Millions of small objects are made, and none of them is garbage: the collector would double
    # the time by going through them again and again.
    gc.disable()
    try:
        plans = [
            await plan_class(each, tokenizer=tokenizer, seed=seed, recount=options.recount)
            for each, seed in zip(options.classes, seeds, strict=True)
        ]
    except ServerError as error:
        reason = f"{error.reason}; --tokenizer PATH reads a local one, --tokenizer words needs none"
        raise ServerError(url=error.url, reason=reason) from error
    finally:
        gc.enable()
    for plan in plans:
        if plan.sessions < options.workers:
            expected = f"at most {plan.sessions}, the sessions of {plan.options.name}"
            raise OptionError(option="--workers", value=options.workers, expected=expected)
    return plans


def _client_spec(options: ClassOptions, server: ServerOptions, model: str, key: str) -> ClientSpec:
    return ClientSpec(
        api=options.api,
        url=server.url,
        model=model,
        timeout_s=server.timeout_s,
        grpc_target=server.grpc_target,
        ca=server.ca,
        key=key,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        headers=options.headers,
        extra_body=options.extra_body,
    )


async def _warm_up(classes: Sequence[tuple[ClassPlan, ClientSpec]], warmups: int) -> list[str]:
    """Send each class's warm-up requests, one after another; returns what failed, in sentences."""
    problems = []
    for plan, spec in classes:
        problem = ""
        async with open_client(spec, on_chunks=lambda _: None) as client:
            for index in range(warmups):
                reply = await client.send(plan.workload.warmup_request(index))
                if reply.error is not None:
                    problem = f"{reply.error}: {reply.message}"
        if problem:
            problems.append(f"a warm-up request of {plan.options.name} failed ({problem})")
    return problems
