import asyncio
from pathlib import Path

import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.errors import FileError, OptionError
from loadgen.records.request import Session
from loadgen.runs.class_plan import ClassPlan, plan_class
from loadgen.runs.options import ClassOptions
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.class_draft import class_seeds, draft_class
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.trace_file import BUNDLED_TRACE
from loadgen.workloads.workload_spec import WorkloadSpec


def synthetic(sessions: int | None = None, **fields: object) -> WorkloadSpec:
    return WorkloadSpec(
        input_lengths=parse_lengths("uniform:8-20"),
        output_lengths=parse_lengths("4"),
        sessions=sessions,
        **fields,  # type: ignore[arg-type]
    )


def planned(workload: WorkloadSpec, *, seed: int = 1, **arrivals: object) -> ClassPlan:
    options = ClassOptions(
        workload=workload,
        arrivals=ArrivalSpec(**arrivals),  # type: ignore[arg-type]
        prompts="text",
    )
    draft = draft_class(options.workload, options.arrivals, seed=seed)
    return asyncio.run(plan_class(options, draft, tokenizer=WordTokenizer(), recount=2))


def all_sessions(plan: ClassPlan) -> list[Session]:
    return [plan.workload.session(at) for at in range(plan.sessions)]


def test_a_rate_and_a_time_make_as_many_sessions_as_come_in_it() -> None:
    plan = planned(synthetic(), rate="50", gaps="constant", duration_s=2.0)

    assert plan.sessions == plan.requests == 100
    assert plan.header(emulated=True, context_tokens=None).arrivals.time == "emulated"


@pytest.mark.long
def test_a_header_says_what_the_workload_itself_shares_and_whether_replies_may_end_early() -> None:
    alone = planned(synthetic(10), rate="50").header(emulated=False, context_tokens=None)
    shared = planned(synthetic(10, shared_prefix_tokens=32), rate="50")
    schema = planned(synthetic(10, output_schema={"type": "object"}), rate="50")
    found = shared.header(emulated=False, context_tokens=None)

    assert alone.input_tokens == sum(
        call.request.input_tokens
        for session in all_sessions(planned(synthetic(10), rate="50"))
        for call in session.calls
    )
    assert (alone.reused_tokens, found.reused_tokens) == (0, 9 * 32)
    assert not alone.free_length
    assert schema.header(emulated=False, context_tokens=None).free_length


def test_a_number_of_sessions_gets_that_many_times() -> None:
    plan = planned(synthetic(7), rate="50")

    assert (plan.sessions, plan.pacer.sessions) == (7, 7)


def test_a_time_ends_a_number_of_sessions_that_would_last_longer() -> None:
    plan = planned(synthetic(100), rate="10", gaps="constant", duration_s=1.0)

    assert plan.sessions == 10
    assert plan.header(emulated=False, context_tokens=None).requests == 10


@pytest.mark.long
def test_recorded_times_are_those_of_the_trace_and_may_be_cut_by_a_time() -> None:
    whole = planned(WorkloadSpec(trace=BUNDLED_TRACE, sessions=50))
    fast = planned(WorkloadSpec(trace=BUNDLED_TRACE), speedup=10.0, duration_s=1.0)

    assert whole.sessions == 50
    due_ns = [whole.pacer.pace(elapsed_ns=0, sent=at, in_flight=0) for at in range(50)]
    assert due_ns == list(whole.plan.arrivals_ns or [])
    assert 1 <= fast.sessions < len(fast.workload)


def test_recorded_times_cannot_be_had_for_more_sessions_than_there_are() -> None:
    with pytest.raises(OptionError, match="--requests=3000: expected at most 2,000, the rows of"):
        planned(WorkloadSpec(trace=BUNDLED_TRACE, sessions=3_000))


@pytest.mark.long
def test_a_closed_loop_with_a_time_gets_sessions_enough_for_it() -> None:
    plan = planned(synthetic(), concurrency="8", duration_s=1_000.0)

    assert plan.sessions == 8 * 1_000 * 4
    assert plan.header(emulated=True, context_tokens=None).ends_s == 1_000.0


@pytest.mark.long
def test_sessions_for_which_a_rate_that_falls_to_0_has_no_time_are_told() -> None:
    plan = planned(synthetic(100), rate="ramp:10-0/2s", gaps="constant")

    assert plan.sessions == 10
    told = "the rate falls to 0 after 10 of 100 sessions: the others are not sent"
    assert told in plan.header(emulated=False, context_tokens=None).notes
    enough = planned(synthetic(10), rate="ramp:10-0/2s", gaps="constant")
    assert enough.header(emulated=False, context_tokens=None).notes == ()


@pytest.mark.parametrize("arrivals", [{"rate": "4"}, {"concurrency": "4"}, {}])
def test_what_has_no_end_is_refused(arrivals: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        planned(synthetic(), **arrivals)


@pytest.mark.long
def test_the_same_seed_makes_the_same_sessions_and_another_makes_others() -> None:
    first, again = planned(synthetic(20), rate="5"), planned(synthetic(20), rate="5")
    other = planned(synthetic(20), rate="5", seed=2)

    assert all_sessions(first) == all_sessions(again)
    assert all_sessions(first) != all_sessions(other)


def test_classes_have_seeds_of_their_own_and_the_first_has_the_run_s() -> None:
    seeds = class_seeds(7, 4)

    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert class_seeds(7, 2) == seeds[:2]
    assert class_seeds(8, 4)[1:] != seeds[1:]


@pytest.mark.long
def test_times_are_stretched_by_the_dilation_unless_they_are_wall_times() -> None:
    emulated = planned(synthetic(3), rate="5", start_s=2.0).traffic(dilation=4.0)
    wall = planned(synthetic(3), rate="5", start_s=2.0, wall_time=True).traffic(dilation=4.0)

    assert (emulated.wall_per_pace, emulated.start_ns) == (4.0, 8_000_000_000)
    assert (wall.wall_per_pace, wall.start_ns) == (1.0, 2_000_000_000)


@pytest.mark.slow
def test_a_closed_loop_is_never_held_back_by_the_usual_bound() -> None:
    many = planned(synthetic(2_000), concurrency="900")
    wide = planned(synthetic(2_000, fan_out=(4, 1)), concurrency="300")
    asked = planned(synthetic(3), rate="5", max_in_flight=9)

    assert many.traffic(1.0).max_in_flight == 900
    assert wide.traffic(1.0).max_in_flight == 1_200
    assert asked.traffic(1.0).max_in_flight == 9
    assert planned(synthetic(3), rate="5").traffic(1.0).max_in_flight == 512


def test_cut_lengths_and_requests_longer_than_the_context_are_noted() -> None:
    plan = planned(synthetic(30, max_input_tokens=10), rate="5")
    notes = plan.header(emulated=False, context_tokens=13).notes

    assert any("--max-input-tokens cut" in note for note in notes)
    assert any("longer than the model's context of 13 tokens" in note for note in notes)
    assert not any(
        "context" in note for note in plan.header(emulated=False, context_tokens=99).notes
    )


def test_a_trace_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.csv: No such file"):
        planned(WorkloadSpec(trace=tmp_path / "none.csv"))
