"""One traffic class before the run: what its sessions are, when they begin, and in which words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import asked, make_pacer
from loadgen.arrivals.pacer import Pacer
from loadgen.attack.traffic import Traffic
from loadgen.errors import OptionError
from loadgen.prompts.contents import make_workload
from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.records.run_record import ClassHeader
from loadgen.records.tokenizer import Tokenizer
from loadgen.runs.options import ClassOptions
from loadgen.workloads.plan import plan_workload
from loadgen.workloads.session_plan import LengthCuts, WorkloadPlan
from loadgen.workloads.sharegpt import Conversations
from loadgen.workloads.trace_file import read_trace

IN_FLIGHT_MAX: Final = 512
"""Requests of a class under way at once, if nothing else was asked for."""

# How many sessions to make for a closed loop that only time ends. Assumed: none takes less than a
# quarter of a second. If they do, the workload is sent again, which the report says.
SESSION_S_MIN: Final = 0.25
SESSIONS_MIN: Final = 1_000
SESSIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassPlan:
    """A class that is ready but for the server's clock, which turns its times into wall times."""

    options: ClassOptions
    pacer: Pacer
    plan: WorkloadPlan
    workload: PromptedWorkload

    @property
    def sessions(self) -> int:
        """How many sessions there are times for, of those that were planned."""
        paced = self.pacer.sessions
        return len(self.workload) if paced is None else min(paced, len(self.workload))

    @property
    def requests(self) -> int:
        """Requests of those sessions."""
        return self.workload.first_requests[self.sessions]

    def wall_per_pace(self, dilation: float) -> float:
        """Wall seconds per second of the time that its arrivals are in."""
        return 1.0 if self.options.arrivals.wall_time else dilation

    def traffic(self, dilation: float) -> Traffic:
        """What the attack takes. `dilation` is wall seconds per second of the server's time."""
        wall_per_pace = self.wall_per_pace(dilation)
        return Traffic(
            name=self.options.name,
            workload=self.workload,
            pacer=self.pacer,
            wall_per_pace=wall_per_pace,
            max_in_flight=self._in_flight_max(),
            start_ns=round(self.options.arrivals.start_s * 1e9 * wall_per_pace),
            served_history=self.options.history == "served",
        )

    def header(self, *, emulated: bool, context_tokens: int | None) -> ClassHeader:
        """What reports say of it. `context_tokens` is the model's longest context, if known."""
        options, ends_ns = self.options, self.pacer.ends_ns
        time = "emulated" if emulated and not options.arrivals.wall_time else "wall"
        return ClassHeader(
            name=options.name,
            api=options.api,
            workload=self.plan.words,
            prompts=self.workload.words,
            arrivals=asked(options.arrivals, self.pacer, time=time),
            sessions=self.sessions,
            requests=self.requests,
            output_tokens=sum(
                call.output_tokens
                for calls in self.plan.sessions[: self.sessions]
                for call in calls
            ),
            ends_s=None if ends_ns is None else options.arrivals.start_s + ends_ns / 1e9,
            slo=options.slo.words if options.slo is not None else "",
            notes=(
                *self.plan.notes,
                *_cut_words(self.plan.cuts),
                *self.workload.notes,
                *self._long_words(context_tokens),
            ),
        )

    def _in_flight_max(self) -> int:
        if self.options.arrivals.max_in_flight is not None:
            return self.options.arrivals.max_in_flight
        if not isinstance(self.pacer, ClosedLoop):
            return IN_FLIGHT_MAX
        fan_out = self.options.workload.fan_out
        at_once = int(max(self.pacer.concurrency.rates_per_s)) * (fan_out[0] if fan_out else 1)
        return max(IN_FLIGHT_MAX, at_once)

    def _long_words(self, context_tokens: int | None) -> Iterator[str]:
        if context_tokens is None:
            return
        long = sum(
            call.input_tokens + call.output_tokens > context_tokens
            for calls in self.plan.sessions[: self.sessions]
            for call in calls
        )
        if long:
            yield (
                f"{long:,} requests are longer than the model's context of {context_tokens:,} "
                "tokens and will be refused; --max-input-tokens cuts them"
            )


def class_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the classes: of one class the run's own, of more a different one each.

    Two classes of one seed would have the same lengths and the same gaps.
    """
    others = [np.random.SeedSequence((seed, at)) for at in range(1, count)]
    return [seed, *(int(each.generate_state(1)[0]) for each in others)]


async def plan_class(
    options: ClassOptions, *, tokenizer: Tokenizer, seed: int, recount: int
) -> ClassPlan:
    """Plan the sessions, their times and their words, all from `seed`.

    The first `recount` requests keep their replies. Raises LoadError for what cannot be used.
    """
    plan, pacer = await _plan_and_pacer(options, tokenizer, seed)
    workload = await make_workload(
        plan,
        tokenizer=tokenizer,
        name=options.name,
        kind=options.prompts,
        api=options.api,
        seed=seed,
        keep_replies=recount,
        served_history=options.history == "served",
    )
    return ClassPlan(options=options, pacer=pacer, plan=plan, workload=workload)


async def _plan_and_pacer(
    options: ClassOptions, tokenizer: Tokenizer, seed: int
) -> tuple[WorkloadPlan, Pacer]:
    """Let the one of the two that knows how many sessions there are tell the other."""
    spec, arrivals = options.workload, options.arrivals
    timed = arrivals.rate is not None or arrivals.concurrency is not None
    sessions = spec.sessions
    pacer: Pacer | None = None
    if timed and sessions is None and (spec.trace is None or arrivals.duration_s is not None):
        pacer = make_pacer(arrivals, sessions=None, recorded_ns=None, seed=seed)
        sessions = pacer.sessions
        if isinstance(pacer, ClosedLoop):
            sessions = _closed_loop_sessions(pacer)
    if sessions == 0:
        raise OptionError(option="--duration", value=arrivals.duration_s, expected="time for one")
    trace = read_trace(spec, sessions=sessions)
    if isinstance(trace, Conversations):
        trace = trace.counted([len(ids) for ids in await tokenizer.encode(trace.texts)])
    plan = plan_workload(spec, sessions=sessions, seed=seed, trace=trace)
    if pacer is None:
        if not timed and trace is not None and plan.arrivals_ns is None and sessions is not None:
            rows = len(trace)
            if sessions > rows:
                expected = f"at most {rows:,}, the rows of {spec.trace}, or a --rate"
                raise OptionError(option="--requests", value=sessions, expected=expected)
        pacer = make_pacer(
            arrivals, sessions=len(plan.sessions), recorded_ns=plan.arrivals_ns, seed=seed
        )
    return plan, pacer


def _closed_loop_sessions(pacer: ClosedLoop) -> int:
    assert pacer.ends_ns is not None, "a closed loop ends by a number or by a time"
    most = float(np.max(pacer.concurrency.rates_per_s)) * pacer.ends_ns / 1e9 / SESSION_S_MIN
    return int(min(SESSIONS_MAX, max(SESSIONS_MIN, most)))


def _cut_words(cuts: LengthCuts) -> Iterator[str]:
    for option, requests, tokens in (
        ("--max-input-tokens", cuts.input_cut_requests, cuts.input_tokens_cut),
        ("--max-output-tokens", cuts.output_cut_requests, cuts.output_tokens_cut),
    ):
        if requests:
            yield f"{option} cut {requests:,} requests by {tokens:,} tokens in all"
