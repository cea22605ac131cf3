"""Preparation of a run: the server's facts, the classes, a warm-up.

Every error that can stop a run is raised here, before anything is measured.
"""

import asyncio
import gc
import resource
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

import aiohttp

from loadgen.clients.client import ClientSpec
from loadgen.clients.open_client import open_client
from loadgen.clients.question import served_model
from loadgen.clients.server_clock import read_server
from loadgen.clients.server_tokenizer import ServerTokenizer
from loadgen.dispatch.job import Job
from loadgen.errors import OptionError
from loadgen.live.live_counts import LiveCounts
from loadgen.records.run_record import RunHeader
from loadgen.records.tokenizer import Tokenizer
from loadgen.runs.class_plan import ClassPlan, plan_class
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.class_draft import ClassDraft, class_seeds, draft_class

STEP_TIMEOUT_S: Final = 10.0
"""A server slower than this for two tokens is not waited for: the run will show it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A warm server and the requests for it.

    `header.start` is a reading of its clock and meters, which run on until the run begins. `jobs`
    are the workers'. `step` makes the server work once, so that meters book the time since the last
    work: idle time stays out of the run.
    """

    header: RunHeader
    jobs: Sequence[Job]
    step: Callable[[], Awaitable[None]]
    tokenizer: Tokenizer


async def prepare(
    session: aiohttp.ClientSession, options: RunOptions, *, command: str, key: str, live: LiveCounts
) -> Prepared:
    """Read the options' files, ask the server's model, tokens and clock, and warm up.

    Raises LoadError for an unusable trace, option or server.
    """
    seeds = class_seeds(options.seed, len(options.classes))
    drafts = [
        draft_class(each.workload, each.arrivals, seed=seed)
        for each, seed in zip(options.classes, seeds, strict=True)
    ]
    local = _local_tokenizer(options.server)
    live.say("asking the server")
    url = options.server.url
    model = await served_model(session, url, options.server.model)
    tokenizer = local or ServerTokenizer(session, url=url, model=model.name)
    live.say("making prompts")
    plans = await _plans(options, drafts, tokenizer)
    specs = [_client_spec(each, options.server, model.name, key) for each in options.classes]
    live.say("warming up")
    notes = await _warm_up(list(zip(plans, specs, strict=True)), options.warmup)
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
        jobs=Job(traffics=traffics).split(options.workers),
        step=partial(_step, plans[0], specs[0], index=options.warmup),
        tokenizer=tokenizer,
    )


def _local_tokenizer(server: ServerOptions) -> Tokenizer | None:
    if server.count_words:
        return WordTokenizer()
    if server.tokenizer is not None:
        return LocalTokenizer(server.tokenizer)
    return None


async def _plans(
    options: RunOptions, drafts: Sequence[ClassDraft], tokenizer: Tokenizer
) -> list[ClassPlan]:
    # Millions of small objects are made, and none of them is garbage: the collector would double
    # the time by going through them again and again.
    gc.disable()
    try:
        plans = [
            await plan_class(each, draft, tokenizer=tokenizer, recount=options.recount)
            for each, draft in zip(options.classes, drafts, strict=True)
        ]
    finally:
        gc.enable()
    for plan in plans:
        if plan.sessions < options.workers:
            expected = f"at most {plan.sessions}, the sessions of {plan.options.name}"
            raise OptionError("--workers", options.workers, expected)
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
        priority=options.workload.priority,
        headers=options.headers,
        extra_body=options.extra_body,
    )


async def _warm_up(classes: Sequence[tuple[ClassPlan, ClientSpec]], warmups: int) -> list[str]:
    """Send each class's warm-up requests in turn; returns failures as sentences."""
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


async def _step(plan: ClassPlan, spec: ClientSpec, *, index: int) -> None:
    """Send one more warm-up request; the run will show a failure."""
    async with open_client(spec, on_chunks=lambda _: None) as client:
        with suppress(TimeoutError):
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await client.send(plan.workload.warmup_request(index))


OTHER_FILES: Final = 64
"""Open files beside the connections: the program's own, pipes, a results file."""


def allow_connections(connections: int) -> None:
    """Raise the process's own limit of open files for `connections`.

    Raises OptionError where the system allows fewer: a request without a file would look like a
    failure of the server.
    """
    needed = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        raise OptionError(
            "--max-in-flight",
            connections,
            f"at most {hard - OTHER_FILES:,} a worker: the system allows a process "
            f"{hard:,} open files (ulimit -n)",
        ) from error
