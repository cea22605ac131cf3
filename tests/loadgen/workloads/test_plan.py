import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OptionError
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.plan import plan_workload
from loadgen.workloads.session_plan import CallPlan, LengthCuts, PromptSegment
from loadgen.workloads.trace_file import BUNDLED_TRACE
from loadgen.workloads.workload_spec import WorkloadSpec
from tests.loadgen.workloads.made_plans import (
    azure,
    chats,
    check,
    keys,
    mooncake,
    shapes,
    synthetic,
)


def test_recorded_rows_become_sessions_of_one_request_at_their_times(tmp_path: Path) -> None:
    path = azure(tmp_path, (374, 44), (396, 109), (879, 55))

    plan = plan_workload(WorkloadSpec(trace=path), sessions=None, seed=0)

    assert [shapes(calls) for calls in plan.sessions] == [
        [([374], 44, ())],
        [([396], 109, ())],
        [([879], 55, ())],
    ]
    assert plan.arrivals_ns == [0, 1_000_000_000, 2_000_000_000]
    assert plan.keys == 3
    assert plan.words == (
        "azure.csv (azure2023); 3 requests, prompts of 374 to 879 (mean 550)"
        " and replies of 44 to 109 (mean 69) tokens"
    )
    assert plan.cuts == LengthCuts()
    assert plan.notes == ()
    check(plan)


def test_prompts_of_a_mooncake_trace_share_the_blocks_that_have_the_same_id(
    tmp_path: Path,
) -> None:
    path = mooncake(tmp_path, (1_000, [5, 9]), (1_100, [5, 9, 7]), (600, [8]), (300, []))

    plan = plan_workload(WorkloadSpec(trace=path), sessions=None, seed=0)

    assert [shapes(calls)[0][0] for calls in plan.sessions] == [
        *([512, 488], [512, 512, 76], [512, 88], [300])
    ]
    # ids 5 and 9 are one text each; the rest are others
    assert [keys(calls[0]) for calls in plan.sessions] == [[0, 1], [0, 1, 2], [3, 4], [5]]
    check(plan)


def test_a_trace_that_is_too_short_begins_anew_with_other_words(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (1_000, [5, 9]), (600, [5, 8]))

    plan = plan_workload(WorkloadSpec(trace=path), sessions=5, seed=0)

    assert [shapes(calls)[0][0] for calls in plan.sessions] == [
        *([512, 488], [512, 88], [512, 488], [512, 88], [512, 488])
    ]
    # within a round the first block is shared; from round to round nothing is
    assert [keys(calls[0]) for calls in plan.sessions] == [[0, 1], [0, 2], [3, 4], [3, 5], [6, 7]]
    assert plan.arrivals_ns is None
    assert plan.notes == ("the trace has 2 rows and begins anew behind the last, with other words",)


def test_recorded_conversations_keep_their_words_and_their_turns(tmp_path: Path) -> None:
    trace = chats(tmp_path)
    spec = WorkloadSpec(trace=tmp_path / "chats.json", think_s=2.0)

    plan = plan_workload(spec, sessions=None, seed=0, trace=trace)

    first, second = plan.sessions
    assert shapes(first) == [([2, 3], 1, ()), ([2, 3, 1, 2], 2, (0,))]
    assert [(segment.text, segment.role, segment.reply_of) for segment in first[1].segments] == [
        ("be brief", "system", None),
        ("why is that", "user", None),
        ("because", "assistant", 0),
        ("and then", "user", None),
    ]
    assert shapes(second) == [([2, 1], 4, ())]
    assert keys(first[0])[0] == keys(second[0])[0]  # the same words: a real shared prefix
    assert plan.arrivals_ns is None
    check(plan)


def test_turns_of_recorded_conversations_can_be_fewer(tmp_path: Path) -> None:
    trace = chats(tmp_path)
    spec = WorkloadSpec(trace=tmp_path / "chats.json", turns=parse_lengths("1"))

    plan = plan_workload(spec, sessions=3, seed=0, trace=trace)

    assert [len(calls) for calls in plan.sessions] == [1, 1, 1]
    assert plan.notes == (
        "the trace has 2 rows and begins anew behind the last, with the same words",
    )


def test_texts_that_were_not_counted_cannot_be_planned(tmp_path: Path) -> None:
    chats(tmp_path)

    with pytest.raises(ValueError, match="are counted first"):
        plan_workload(WorkloadSpec(trace=tmp_path / "chats.json"), sessions=1, seed=0)


def test_no_more_of_a_file_is_read_than_there_are_sessions(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    path.write_text(json.dumps([{"conversations": talk}, "not looked at"]))

    # a ValueError, not the FileError of the second entry
    with pytest.raises(ValueError, match="are counted first"):
        plan_workload(WorkloadSpec(trace=path, sessions=1), sessions=None, seed=0)
    with pytest.raises(ValueError, match="are counted first"):
        plan_workload(WorkloadSpec(trace=path, sessions=2), sessions=1, seed=0)


def test_caps_cut_only_what_is_longer_and_count_what_they_took(tmp_path: Path) -> None:
    path = azure(tmp_path, (10, 5), (20, 50), (30, 60), (15, 50))
    spec = WorkloadSpec(trace=path, max_input_tokens=15, max_output_tokens=50)

    plan = plan_workload(spec, sessions=None, seed=0)

    assert [shapes(calls)[0][:2] for calls in plan.sessions] == [
        *(([10], 5), ([15], 50), ([15], 50), ([15], 50))
    ]
    assert plan.cuts == LengthCuts(
        max_input_tokens=15,
        max_output_tokens=50,
        input_cut_requests=2,
        input_tokens_cut=5 + 15,
        output_cut_requests=1,
        output_tokens_cut=10,
    )


def test_a_block_that_is_cut_is_still_the_beginning_of_its_text(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (1_000, [5, 9]), (1_024, [5, 9]))

    plan = plan_workload(WorkloadSpec(trace=path, max_input_tokens=600), sessions=None, seed=0)

    assert [(keys(calls[0]), shapes(calls)[0][0]) for calls in plan.sessions] == [
        *(([0, 1], [512, 88]), ([0, 1], [512, 88]))
    ]


def test_a_share_of_the_sessions_begins_with_a_long_context() -> None:
    spec = synthetic("10", "3", long_share=0.25, long_tokens=5_000, turns=parse_lengths("2"))

    plan = plan_workload(spec, sessions=4_000, seed=0)

    long = sum(calls[0].input_tokens == 5_000 for calls in plan.sessions)
    # four standard errors of 4,000 draws of a quarter: 110
    assert abs(long - 1_000) <= 110
    assert {calls[0].input_tokens for calls in plan.sessions} == {10, 5_000}
    assert {calls[1].segments[-1].tokens for calls in plan.sessions} == {10}
    assert "; 25 % of the sessions begin with 5,000 tokens; turns 2" in plan.words


def test_shared_system_prompts_are_drawn_from_all_groups_alike() -> None:
    spec = synthetic("10", "3", shared_prefix_tokens=64, shared_prefix_groups=4)

    plan = plan_workload(spec, sessions=4_000, seed=0)

    found = [calls[0].segments[0] for calls in plan.sessions]
    _, counts = np.unique([segment.key for segment in found], return_counts=True)
    assert len(counts) == 4
    assert all(abs(count - 1_000) <= 110 for count in counts)  # four standard errors
    assert {(segment.tokens, segment.role) for segment in found} == {(64, "system")}
    assert {calls[0].input_tokens for calls in plan.sessions} == {74}


def test_later_turns_of_a_trace_have_lengths_of_its_own_rows(tmp_path: Path) -> None:
    rows = [(100, 1), (200, 2), (300, 3)]
    spec = WorkloadSpec(trace=azure(tmp_path, *rows), turns=parse_lengths("30"))

    plan = plan_workload(spec, sessions=None, seed=0)

    assert [(calls[0].input_tokens, calls[0].output_tokens) for calls in plan.sessions] == rows
    later = [
        (call.segments[-1].tokens, call.output_tokens)
        for calls in plan.sessions
        for call in calls[1:]
    ]
    assert set(later) == set(rows)  # a row's two lengths stay together


def test_lengths_can_be_given_in_place_of_the_recorded_ones(tmp_path: Path) -> None:
    path = azure(tmp_path, (100, 1), (200, 2))
    spec = WorkloadSpec(
        trace=path, input_lengths=parse_lengths("7"), output_lengths=parse_lengths("8")
    )

    plan = plan_workload(spec, sessions=None, seed=0)

    assert [shapes(calls)[0][:2] for calls in plan.sessions] == [([7], 8), ([7], 8)]
    assert plan.arrivals_ns == [0, 1_000_000_000]


def test_a_schema_goes_with_every_call() -> None:
    schema = {"type": "object"}

    plan = plan_workload(
        synthetic("10", "3", fan_out=(2, 1), output_schema=schema), sessions=1, seed=0
    )

    assert [call.output_schema for call in plan.sessions[0]] == [schema] * 4
    assert plan.words.endswith("replies keep to a JSON schema")


SPECS = st.fixed_dictionaries(
    {
        "input_lengths": st.sampled_from(["7", "uniform:1-300", "lognormal:90,60"]),
        "output_lengths": st.sampled_from(["3", "uniform:1-40"]),
    },
    optional={
        "shared_prefix_tokens": st.integers(1, 40),
        "shared_prefix_groups": st.integers(1, 3),
        "long_context": st.tuples(st.floats(0.1, 1.0), st.integers(1, 900)),
        "max_input_tokens": st.integers(41, 600),
        "max_output_tokens": st.integers(1, 30),
        "shape": st.one_of(
            st.fixed_dictionaries({"turns": st.sampled_from(["1", "4", "uniform:1-6"])}),
            st.fixed_dictionaries({"fan_out": st.tuples(st.integers(1, 3), st.integers(1, 3))}),
        ),
    },
)


def spec_of(asked: dict[str, Any]) -> WorkloadSpec:
    asked = dict(asked) | dict(asked.get("shape", {}))
    asked.pop("shape", None)
    share, tokens = asked.pop("long_context", (0.0, 0))
    for name in ("input_lengths", "output_lengths", "turns"):
        if name in asked:
            asked[name] = parse_lengths(asked[name])
    return WorkloadSpec(long_share=share, long_tokens=tokens, **asked)


@given(asked=SPECS, seed=st.integers(0, 2**63), few=st.integers(1, 5), more=st.integers(0, 20))
def test_every_plan_holds_together_and_its_first_sessions_do_not_depend_on_their_number(
    asked: dict[str, Any], seed: int, few: int, more: int
) -> None:
    spec = spec_of(asked)

    plan = plan_workload(spec, sessions=few + more, seed=seed)
    first = plan_workload(spec, sessions=few, seed=seed)

    check(plan)
    assert plan.sessions[:few] == first.sessions
    assert first.keys <= plan.keys
    if spec.max_input_tokens is not None:
        longest = max(call.input_tokens for calls in plan.sessions for call in calls)
        assert longest <= spec.max_input_tokens


@pytest.mark.long
def test_the_first_rows_of_a_trace_make_the_same_sessions_however_many_there_are() -> None:
    spec = WorkloadSpec(trace=BUNDLED_TRACE, turns=parse_lengths("uniform:1-4"))

    plan = plan_workload(spec, sessions=3_000, seed=7)  # of 2,000 rows

    assert plan.sessions[:50] == plan_workload(spec, sessions=50, seed=7).sessions
    assert plan.words.startswith("bundled synthetic trace; ")


def test_another_seed_makes_other_sessions_and_another_option_leaves_lengths_alone() -> None:
    def made(seed: int, **more: Any) -> list[tuple[int, int]]:
        spec = synthetic("uniform:1-900", "uniform:1-900", **more)
        plan = plan_workload(spec, sessions=20, seed=seed)
        return [(calls[0].segments[-1].tokens, calls[0].output_tokens) for calls in plan.sessions]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert made(1) == made(1, shared_prefix_tokens=16, shared_prefix_groups=3)
    inputs, outputs = zip(*made(1), strict=True)
    assert inputs != outputs  # each has a stream of chance of its own


def test_a_plan_can_be_pickled() -> None:
    plan = plan_workload(synthetic("10", "3", turns=parse_lengths("2")), sessions=3, seed=0)

    copy = pickle.loads(pickle.dumps(plan))

    assert copy.sessions == plan.sessions


def test_a_piece_is_cut_to_its_beginning() -> None:
    segment = PromptSegment(key=3, tokens=10, role="system", text="one two")

    assert segment.cut(4) == PromptSegment(key=3, tokens=4, role="system", text="one two")


@pytest.mark.parametrize(("key", "tokens"), [(-1, 1), (0, 0), (-1, 0)])
def test_a_piece_without_a_key_or_a_length_cannot_be_made(key: int, tokens: int) -> None:
    with pytest.raises(ValueError, match=f"a segment of {tokens} tokens, key {key}"):
        PromptSegment(key=key, tokens=tokens)


def test_a_call_of_a_plan_waits_for_none_and_at_once_unless_it_says_so() -> None:
    call = CallPlan(
        segments=(PromptSegment(key=0, tokens=5), PromptSegment(key=1, tokens=7)), output_tokens=3
    )

    assert (call.after, call.think_ns, call.output_schema, call.input_tokens) == ((), 0, None, 12)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (WorkloadSpec(), "--input=None: expected lengths, or a --trace"),
        (
            WorkloadSpec(input_lengths=parse_lengths("5")),
            "--output=None: expected lengths, or a --trace",
        ),
        (synthetic("5", "5"), "--requests=None: expected how many"),
        (
            synthetic("5", "5", fan_out=(999, 10_000), sessions=2),
            "--requests=2: expected at most 10,000,000 calls in all, not 20,000,002",
        ),
    ],
)
def test_a_workload_without_lengths_or_number_is_refused(spec: WorkloadSpec, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        plan_workload(spec, sessions=None, seed=0)

    assert str(refused.value).startswith(message)


def test_blocks_are_as_long_as_they_are(tmp_path: Path) -> None:
    spec = WorkloadSpec(trace=mooncake(tmp_path, (600, [1, 2])), input_lengths=parse_lengths("9"))

    with pytest.raises(OptionError, match="--input=9: expected it beside a trace without blocks"):
        plan_workload(spec, sessions=None, seed=0)


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"input_lengths": parse_lengths("9")}, "--input=9"),
        ({"output_lengths": parse_lengths("9")}, "--output=9"),
        ({"fan_out": (2, 3)}, "--fan-out=2x3"),
        ({"long_share": 0.5, "long_tokens": 9}, "--long-context=0.5:9"),
    ],
)
def test_recorded_words_are_sent_as_they_are(
    tmp_path: Path, asked: dict[str, Any], option: str
) -> None:
    trace = chats(tmp_path)
    spec = WorkloadSpec(trace=tmp_path / "chats.json", **asked)

    with pytest.raises(OptionError, match=f"{option}: expected a trace that has no words"):
        plan_workload(spec, sessions=None, seed=0, trace=trace)
