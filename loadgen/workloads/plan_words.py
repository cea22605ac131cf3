"""A workload in words, for reports: source, amount, options."""

from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.records.arrays import Int64s
from loadgen.records.plain_number import counted
from loadgen.workloads.recording import Recording
from loadgen.workloads.trace_file import BUNDLED_TRACE, Trace
from loadgen.workloads.workload_spec import WorkloadSpec

Tokens = Sequence[int] | Int64s


def plan_words(
    spec: WorkloadSpec,
    trace: Trace | None,
    input_tokens: Tokens,
    output_tokens: Tokens,
    *,
    sessions: int | None,
) -> str:
    """One line on at least one request, of their tokens; time alone limits `sessions` of None."""
    amount = _amount(np.asarray(input_tokens), np.asarray(output_tokens), sessions)
    return "; ".join([_source(spec, trace), amount, *laid_over(spec)])


def _source(spec: WorkloadSpec, trace: Trace | None) -> str:
    if spec.trace is None:
        source = "synthetic"
    elif spec.trace == BUNDLED_TRACE:
        source = "bundled synthetic trace"
    else:
        kind = trace.kind if isinstance(trace, Recording) else "sharegpt"
        source = f"{spec.trace.name} ({kind})"
    if spec.window_s is not None:
        source += ", {:g} to {:g} s of it".format(*spec.window_s)
    if spec.input_lengths is not None:
        source += f", input {spec.input_lengths.words}"
    if spec.output_lengths is not None:
        source += f", output {spec.output_lengths.words}"
    return source


def _amount(inputs: Int64s, outputs: Int64s, sessions: int | None) -> str:
    requests = counted(len(inputs), "request")
    if sessions is None:
        requests = "as many requests as time allows"
    elif len(inputs) > sessions:
        requests += f" in {counted(sessions, 'session')}"
    return f"{requests}, prompts of {_spread(inputs)} and replies of {_spread(outputs)} tokens"


def _spread(tokens: Int64s) -> str:
    least, most = tokens.min(), tokens.max()
    if least == most:
        return f"{least:,}"
    return f"{least:,} to {most:,} (mean {tokens.mean():,.0f})"


def laid_over(spec: WorkloadSpec) -> Iterator[str]:
    """What sessions have beside the lengths of their requests, each as a phrase."""
    if spec.shared_prefix_tokens:
        groups = spec.shared_prefix_groups
        each = "a shared system prompt" if groups == 1 else f"one of {groups} shared system prompts"
        yield f"{each} of {spec.shared_prefix_tokens:,} tokens before each session"
    if spec.long_share:
        share = f"{100 * spec.long_share:.3g} %"
        yield f"{share} of the sessions begin with {spec.long_tokens:,} tokens"
    if spec.turns is not None:
        yield f"turns {spec.turns.words}"
    if spec.fan_out is not None:
        width, depth = spec.fan_out
        yield f"a fan-out of {width} calls at once, {depth} {'level' if depth == 1 else 'levels'}"
    if spec.think_s:
        yield f"{spec.think_s:g} s to think between calls"
    if spec.priority:
        yield f"priority {spec.priority}"
    if spec.output_schema is not None:
        yield "replies keep to a JSON schema"
