"""Traces and specs for tests, and invariants of plans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.session_plan import CallPlan, WorkloadPlan
from loadgen.workloads.sharegpt import Conversations
from loadgen.workloads.trace_file import read_trace
from loadgen.workloads.workload_spec import WorkloadSpec

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def synthetic(input_lengths: str, output_lengths: str, **more: Any) -> WorkloadSpec:
    return WorkloadSpec(
        input_lengths=parse_lengths(input_lengths),
        output_lengths=parse_lengths(output_lengths),
        **more,
    )


def azure(folder: Path, *lengths: tuple[int, int]) -> Path:
    path = folder / "azure.csv"
    rows = [
        f"2023-11-16 18:15:{second:02d}.0000000,{inputs},{outputs}"
        for second, (inputs, outputs) in enumerate(lengths)
    ]
    path.write_text("\n".join([AZURE_HEADER, *rows]))
    return path


def mooncake(folder: Path, *rows: tuple[int, list[int]]) -> Path:
    path = folder / "mooncake.jsonl"
    lines = [
        {"timestamp": 1_000 * at, "input_length": tokens, "output_length": 9, "hash_ids": blocks}
        for at, (tokens, blocks) in enumerate(rows)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def chats(folder: Path) -> Conversations:
    path = folder / "chats.json"
    talk = [
        *(("system", "be brief"), ("human", "why is that"), ("gpt", "because")),
        *(("human", "and then"), ("gpt", "nothing more")),
    ]
    short = [("system", "be brief"), ("human", "hello"), ("gpt", "good day to you")]
    path.write_text(
        json.dumps(
            [
                {"conversations": [{"from": who, "value": words} for who, words in messages]}
                for messages in (talk, short)
            ]
        )
    )
    trace = read_trace(WorkloadSpec(trace=path))
    assert isinstance(trace, Conversations)
    return trace.counted([len(text.split()) for text in trace.texts])


def shapes(calls: Sequence[CallPlan]) -> list[tuple[list[int], int, tuple[int, ...]]]:
    return [
        ([segment.tokens for segment in call.segments], call.output_tokens, call.after)
        for call in calls
    ]


def keys(call: CallPlan) -> list[int]:
    return [segment.key for segment in call.segments]


def check(plan: WorkloadPlan) -> None:
    """Assert the invariants of every plan."""
    text_of: dict[tuple[int, int], str | None] = {}
    for calls in plan.sessions:
        assert calls
        for position, call in enumerate(calls):
            assert all(0 <= other < position for other in call.after)
            assert call.output_tokens >= 1
            for segment in call.segments:
                assert 0 <= segment.key < plan.keys
                assert (
                    text_of.setdefault((segment.key, segment.tokens), segment.text) == segment.text
                )
                if segment.reply_of is not None:
                    assert segment.reply_of < position
                    assert segment.tokens <= calls[segment.reply_of].output_tokens
                    # the reply of a call that this one waits for, directly or not
                    assert segment.reply_of in waits_for(calls, position)
    assert plan.requests == sum(map(len, plan.sessions))


def waits_for(calls: Sequence[CallPlan], position: int) -> set[int]:
    found = set(calls[position].after)
    for other in calls[position].after:
        found |= waits_for(calls, other)
    return found
