"""Plans sessions from a `WorkloadSpec`: lengths, shared pieces, dependencies; no texts yet.

The same spec, trace and seed give the same first sessions, however many there are.
"""

from collections.abc import Iterator

import numpy as np

from loadgen.errors import OptionError
from loadgen.records.arrays import Int64s
from loadgen.records.request import Role
from loadgen.workloads.call_writer import CallWriter, Segments
from loadgen.workloads.plan_words import plan_words
from loadgen.workloads.recording import Recording
from loadgen.workloads.session_draws import SessionDraws, draw_groups, draw_sessions, draw_turns
from loadgen.workloads.session_plan import (
    CallPlan,
    LengthCuts,
    PromptSegment,
    SingleRequests,
    WorkloadPlan,
)
from loadgen.workloads.session_shapes import Turn, conversation, fan_out
from loadgen.workloads.sharegpt import Conversations
from loadgen.workloads.trace_file import Trace, read_trace
from loadgen.workloads.workload_spec import WorkloadSpec

Calls = tuple[CallPlan, ...]


def plan_workload(
    spec: WorkloadSpec,
    *,
    sessions: int | None,
    seed: int,
    trace: Trace | None = None,
    pool: bool = False,
) -> WorkloadPlan:
    """Plan `sessions` sessions; None: as many as `spec` says, or as the trace has rows.

    A `pool`'s sessions are taken as time allows, and their number is no limit. `trace` is
    `read_trace` of the same spec (default: read here); texts of conversations must have been
    counted (`Conversations.counted`), else ValueError. A shorter trace is repeated, with other
    words where it has none of its own, without recorded arrivals. Raises FileError, OptionError for
    unusable files and options.
    """
    if trace is None:
        count = spec.sessions if sessions is None else sessions
        trace = read_trace(spec, sessions=count, seed=seed)
    _check(spec, trace)
    sessions = _session_count(spec, sessions, trace)
    writer = CallWriter(spec)
    if isinstance(trace, Conversations):
        made = list(_recorded_conversations(writer, spec, trace, sessions=sessions, seed=seed))
    else:
        draws = draw_sessions(spec, sessions=sessions, seed=seed, recording=trace)
        made = list(_drawn_sessions(writer, spec, trace, draws))
    calls = [call for session in made for call in session]
    return WorkloadPlan(
        sessions=made,
        arrivals_ns=_arrivals_ns(trace, sessions),
        keys=writer.keys,
        words=plan_words(
            spec,
            trace,
            [call.input_tokens for call in calls],
            [call.output_tokens for call in calls],
            sessions=None if pool else len(made),
        ),
        cuts=writer.cuts(),
        notes=tuple(_notes(spec, trace, sessions, writer.left_out_calls)),
    )


def plan_single_requests(
    spec: WorkloadSpec, *, sessions: int | None, seed: int, trace: Trace | None
) -> SingleRequests | None:
    """The lengths that `plan_workload` plans, where each session is one request; else None.

    Also None for prompts that share a system prompt. `trace` is `read_trace` of the same spec.
    """
    if spec.turns is not None or spec.fan_out is not None or spec.shared_prefix_tokens:
        return None
    if isinstance(trace, Conversations):
        return None
    _check(spec, trace)
    sessions = _session_count(spec, sessions, trace)
    draws = draw_sessions(spec, sessions=sessions, seed=seed, recording=trace)
    input_tokens, input_cuts = _capped(draws.input_tokens, spec.max_input_tokens)
    output_tokens, output_cuts = _capped(draws.output_tokens, spec.max_output_tokens)
    return SingleRequests(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        blocks=None if trace is None else _named_blocks(trace, draws),
        block_tokens=0 if trace is None else trace.block_tokens,
        arrivals_ns=_arrivals_ns(trace, sessions),
        words=plan_words(spec, trace, input_tokens, output_tokens, sessions=sessions),
        cuts=LengthCuts(
            max_input_tokens=spec.max_input_tokens,
            max_output_tokens=spec.max_output_tokens,
            input_cut_requests=int((input_cuts > 0).sum()),
            input_tokens_cut=int(input_cuts.sum()),
            output_cut_requests=int((output_cuts > 0).sum()),
            output_tokens_cut=int(output_cuts.sum()),
        ),
        notes=tuple(_notes(spec, trace, sessions, 0)),
    )


def _capped(tokens: Int64s, cap: int | None) -> tuple[Int64s, Int64s]:
    """Lengths up to `cap`, and what was cut off, each [sessions]."""
    kept = tokens if cap is None else np.minimum(tokens, cap)
    return kept, tokens - kept


def _named_blocks(recording: Recording, draws: SessionDraws) -> list[tuple[int, ...]] | None:
    """Each prompt's blocks; a repeated row has other ones, a long context none."""
    if recording.blocks is None:
        return None
    rows = recording.blocks
    apart = max((name for row in rows for name in row), default=0) + 1
    named = []
    for index, long in enumerate(draws.long.tolist()):
        again, row = divmod(index, len(rows))
        blocks = () if long else rows[row]
        named.append(tuple(name + again * apart for name in blocks) if again else blocks)
    return named


def _session_count(spec: WorkloadSpec, sessions: int | None, trace: Trace | None) -> int:
    sessions = spec.sessions if sessions is None else sessions
    if sessions is None:
        if trace is None:
            expected = "how many, or a --rate with a --duration, beside --input and --output"
            raise OptionError("--requests", None, expected)
        sessions = len(trace)
    return sessions


def _arrivals_ns(trace: Trace | None, sessions: int) -> list[int] | None:
    """Recorded times, where there are as many."""
    if isinstance(trace, Recording) and sessions <= len(trace):
        times_ns: list[int] = trace.arrivals_ns[:sessions].tolist()
        return times_ns
    return None


def _check(spec: WorkloadSpec, trace: Trace | None) -> None:
    """Raise OptionError for missing options, or ones that contradict the trace."""
    lengths = (("--input", spec.input_lengths), ("--output", spec.output_lengths))
    if trace is None:
        for option, asked in lengths:
            if asked is None:
                raise OptionError(option, None, "lengths, or a --trace")
    if isinstance(trace, Recording) and trace.blocks is not None and spec.input_lengths:
        expected = "it beside a trace without blocks: those of this one are as long as they are"
        raise OptionError("--input", spec.input_lengths.words, expected)
    if isinstance(trace, Conversations):
        if not trace.tokens:
            raise ValueError("the texts of a trace of conversations are counted first")
        wanted = [(option, asked.words) for option, asked in lengths if asked is not None]
        if spec.fan_out is not None:
            wanted.append(("--fan-out", "{}x{}".format(*spec.fan_out)))
        if spec.long_share:
            wanted.append(("--long-context", f"{spec.long_share:g}:{spec.long_tokens}"))
        for option, value in wanted:
            expected = "a trace that has no words of its own, which are sent as they are"
            raise OptionError(option, value, expected)


def _prefix(writer: CallWriter, spec: WorkloadSpec, group: int) -> Segments:
    """The system prompt of the group."""
    if not spec.shared_prefix_tokens:
        return ()
    return (writer.same(("prefix", group), spec.shared_prefix_tokens, role="system"),)


def _drawn_sessions(
    writer: CallWriter, spec: WorkloadSpec, recording: Recording | None, draws: SessionDraws
) -> Iterator[Calls]:
    inputs, outputs = iter(draws.input_tokens.tolist()), iter(draws.output_tokens.tolist())
    numbers = zip(draws.calls.tolist(), draws.groups.tolist(), draws.long.tolist(), strict=True)
    for index, (calls, group, long) in enumerate(numbers):
        first_tokens = next(inputs)
        if recording is None or recording.blocks is None or long:
            first: Segments = (writer.own(first_tokens),)
        else:
            first = _blocks(writer, recording, index, first_tokens)
        turns = [Turn(own=first, output_tokens=next(outputs))]
        for _ in range(calls - 1):
            turns.append(Turn(own=(writer.own(next(inputs)),), output_tokens=next(outputs)))
        prefix = _prefix(writer, spec, group)
        if spec.fan_out is not None:
            yield fan_out(writer, prefix=prefix, turns=turns, width=spec.fan_out[0])
        else:
            yield conversation(writer, prefix=prefix, turns=turns)


def _blocks(writer: CallWriter, recording: Recording, index: int, tokens: int) -> Segments:
    """The blocks of a row's prompt; each repetition of a row has its own words."""
    assert recording.blocks is not None  # the caller asked
    again, row = divmod(index, len(recording))
    segments: list[PromptSegment] = []
    for block in recording.blocks[row]:
        taken = min(tokens, recording.block_tokens)
        segments.append(writer.same(("block", again, block), taken))
        tokens -= taken
    if tokens:  # behind the last block that has a name
        segments.append(writer.own(tokens))
    return tuple(segments)


def _recorded_conversations(
    writer: CallWriter, spec: WorkloadSpec, trace: Conversations, *, sessions: int, seed: int
) -> Iterator[Calls]:
    most = draw_turns(spec, sessions=sessions, seed=seed)
    groups = draw_groups(spec, sessions=sessions, seed=seed).tolist()
    for index in range(sessions):
        recorded = trace.items[index % len(trace)]
        turns = recorded.turns if most is None else recorded.turns[: most[index]]
        prefix = _prefix(writer, spec, groups[index])
        if recorded.system:
            prefix += (_said(writer, trace, recorded.system, role="system"),)
        yield conversation(
            writer,
            prefix=prefix,
            turns=[
                Turn(
                    own=(_said(writer, trace, question),),
                    output_tokens=trace.tokens[reply],
                    reply_text=reply,
                )
                for question, reply in turns
            ],
        )


def _said(
    writer: CallWriter, trace: Conversations, text: str, *, role: Role = "user"
) -> PromptSegment:
    """The piece of a recorded text: the same text is the same piece, in any role."""
    return writer.same(text, trace.tokens[text], role=role, text=text)


def _notes(
    spec: WorkloadSpec, trace: Trace | None, sessions: int, left_out_calls: int
) -> Iterator[str]:
    """Notes on the plan, for reports."""
    if trace is not None:
        yield from trace.notes
        if sessions > len(trace):
            words = "the same words" if isinstance(trace, Conversations) else "other words"
            yield f"the trace has {len(trace):,} rows and begins anew behind the last, with {words}"
    if left_out_calls:
        yield (
            f"{left_out_calls:,} calls are left out: what was said before them fills the "
            f"{spec.max_input_tokens:,} tokens of --max-input-tokens"
        )
