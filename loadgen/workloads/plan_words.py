"""A workload in words, for reports: source, amount, options."""

from collections.abc import Iterator, Sequence

from loadgen.records.plain_number import counted
from loadgen.workloads.recording import Recording
from loadgen.workloads.session_plan import CallPlan
from loadgen.workloads.trace_file import BUNDLED_TRACE, Trace
from loadgen.workloads.workload_spec import WorkloadSpec


def plan_words(
    spec: WorkloadSpec, trace: Trace | None, sessions: Sequence[tuple[CallPlan, ...]], *, pool: bool
) -> str:
    """One line on at least one session; time alone limits a `pool`."""
    return "; ".join([_source(spec, trace), _amount(sessions, pool=pool), *_laid_over(spec)])


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


def _amount(sessions: Sequence[tuple[CallPlan, ...]], *, pool: bool) -> str:
    inputs = [call.input_tokens for calls in sessions for call in calls]
    outputs = [call.output_tokens for calls in sessions for call in calls]
    requests = counted(len(inputs), "request")
    if pool:
        requests = "as many requests as time allows"
    elif len(inputs) > len(sessions):
        requests += f" in {counted(len(sessions), 'session')}"
    return f"{requests}, prompts of {_spread(inputs)} and replies of {_spread(outputs)} tokens"


def _spread(tokens: Sequence[int]) -> str:
    least, most = min(tokens), max(tokens)
    if least == most:
        return f"{least:,}"
    return f"{least:,} to {most:,} (mean {sum(tokens) / len(tokens):,.0f})"


def _laid_over(spec: WorkloadSpec) -> Iterator[str]:
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
    if spec.output_schema is not None:
        yield "replies keep to a JSON schema"
