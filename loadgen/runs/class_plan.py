"""One traffic class before the run: sessions, times, words."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import asked
from loadgen.arrivals.pacer import Pacer
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.prompts.contents import make_workload
from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.records.plain_number import counted
from loadgen.records.run_record import ClassHeader
from loadgen.records.tokenizer import Tokenizer
from loadgen.runs.options import ClassOptions
from loadgen.workloads.class_draft import ClassDraft, unpaced_words
from loadgen.workloads.prefix_reuse import prefix_reuse
from loadgen.workloads.session_plan import CallPlan, WorkloadPlan

IN_FLIGHT_MAX: Final = 512
"""Default limit of a class's concurrent requests."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassPlan:
    """A class complete but for the server's clock, which makes its times wall times."""

    options: ClassOptions
    pacer: Pacer
    plan: WorkloadPlan
    workload: PromptedWorkload

    @property
    def sessions(self) -> int:
        """Planned sessions with a time."""
        paced = self.pacer.sessions
        return len(self.workload) if paced is None else min(paced, len(self.workload))

    @property
    def requests(self) -> int:
        """Requests of those sessions."""
        return self.workload.first_requests[self.sessions]

    def traffic(self, dilation: float) -> DispatchedClass:
        """The class for the dispatcher; `dilation` is wall s per second of the server's time."""
        wall_per_pace = 1.0 if self.options.arrivals.wall_time else dilation
        return DispatchedClass(
            name=self.options.name,
            workload=self.workload,
            pacer=self.pacer,
            wall_per_pace=wall_per_pace,
            max_in_flight=self._in_flight_max(),
            start_ns=round(self.options.arrivals.start_s * 1e9 * wall_per_pace),
            served_history=self.options.workload.history == "served",
            follows_server=not self.options.arrivals.wall_time,
        )

    def header(self, *, emulated: bool, context_tokens: int | None) -> ClassHeader:
        """The class for reports. `context_tokens` is the model's longest context, if known."""
        options, ends_ns = self.options, self.pacer.ends_ns
        pool = self.pacer.sessions is None  # time alone says how many
        time = "emulated" if emulated and not options.arrivals.wall_time else "wall"
        reuse = prefix_reuse(self.plan.sessions[: self.sessions])
        return ClassHeader(
            name=options.name,
            api=options.api,
            workload=self.plan.words,
            prompts=self.workload.words,
            arrivals=asked(options.arrivals, self.pacer, time=time),
            sessions=None if pool else self.sessions,
            requests=None if pool else self.requests,
            output_tokens=None if pool else sum(call.output_tokens for call in self._calls()),
            ends_s=None if ends_ns is None else options.arrivals.start_s + ends_ns / 1e9,
            input_tokens=reuse.input_tokens,
            reused_tokens=reuse.reused_tokens,
            free_length=not options.ignore_eos or options.workload.output_schema is not None,
            slo=options.slo.words if options.slo is not None else "",
            notes=(
                *self.plan.notes,
                *self.plan.cuts.words,
                *unpaced_words(options.arrivals, self.pacer, len(self.plan.sessions)),
                *self.workload.notes,
                *self._long_words(context_tokens),
            ),
        )

    def _calls(self) -> Iterator[CallPlan]:
        """Calls of sessions with a time."""
        return chain.from_iterable(self.plan.sessions[: self.sessions])

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
            call.input_tokens + call.output_tokens > context_tokens for call in self._calls()
        )
        if long:
            yield (
                f"longer than the model's context of {context_tokens:,} tokens, and so refused: "
                f"{counted(long, 'request')}; --max-input-tokens cuts them"
            )


async def plan_class(
    options: ClassOptions, draft: ClassDraft, *, tokenizer: Tokenizer, recount: int
) -> ClassPlan:
    """Plan sessions, times and words from the draft's seed.

    The first `recount` requests keep their replies. Raises LoadError for an unusable draft.
    """
    if draft.texts:
        draft = draft.counted([len(ids) for ids in await tokenizer.encode(draft.texts)])
    plan, pacer = draft.planned()
    workload = await make_workload(
        plan,
        tokenizer=tokenizer,
        name=options.name,
        kind=options.prompts,
        api=options.api,
        seed=draft.seed,
        keep_replies=recount,
        served_history=options.workload.history == "served",
    )
    return ClassPlan(options=options, pacer=pacer, plan=plan, workload=workload)
