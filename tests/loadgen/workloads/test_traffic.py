"""Traffic: drawn, read, cut and sped up."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import FileError, OptionError
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform, lognormal_of_median
from loadgen.workloads.traffic import ClosedLoops, PromptBlocks, Sessions, Traffic

LENGTHS = IndependentLengths(
    prompt=lognormal_of_median(median=100, sigma=1.0), output=Uniform(least=5, most=5)
)


def traffic(*arrival_s: float) -> Traffic:
    """Requests whose prompts have 10, 11, 12, ... tokens."""
    return Traffic(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=10 + np.arange(len(arrival_s), dtype=np.int64),
        output_tokens=np.full(len(arrival_s), 3, dtype=np.int64),
    )


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    gaps_s = draw(st.lists(st.floats(0, 10, allow_subnormal=False), max_size=30))
    return traffic(*np.cumsum(gaps_s).tolist())


def prompts(part: Traffic) -> list[int]:
    return part.prompt_tokens.tolist()


def test_a_window_begins_at_its_own_zero_and_leaves_its_end_out() -> None:
    part = traffic(0.5, 1.0, 2.0, 3.0).window(1.0, 3.0)

    assert part.arrival_s.tolist() == [0.0, 1.0]
    assert prompts(part) == [11, 12]


def test_speeding_up_divides_times_and_keeps_requests() -> None:
    fast = traffic(1.0, 2.0, 4.0).sped_up(2.0)

    assert fast.arrival_s.tolist() == [0.5, 1.0, 2.0]
    assert prompts(fast) == [10, 11, 12]


def test_what_does_not_fit_in_the_context_can_be_left_out() -> None:
    assert prompts(traffic(0.0, 1.0, 2.0).within_context(14)) == [10, 11]


def test_poisson_traffic_has_its_rate_and_the_gaps_of_chance() -> None:
    made = Traffic.drawn(rate_per_s=20.0, lengths=LENGTHS, seed=5, requests=20_000)

    # 20,000 gaps: standard errors of 0.7 % (mean) and about 1 % (spread).
    gaps_s = np.diff(made.arrival_s)
    assert gaps_s.mean() == pytest.approx(1 / 20.0, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.04)
    # Counts of a Poisson process in a second have their mean for variance.
    counts = np.bincount(made.arrival_s.astype(int))[:-1]
    assert counts.var() == pytest.approx(20.0, rel=0.2)


def test_more_requests_or_another_rate_keep_the_lengths() -> None:
    few, many, fast = (
        Traffic.drawn(rate_per_s=rate, lengths=LENGTHS, seed=6, requests=requests)
        for rate, requests in ((1.0, 10), (1.0, 20), (50.0, 10))
    )

    assert prompts(few) == prompts(many)[:10] == prompts(fast)
    assert few.arrival_s.tolist() == many.arrival_s[:10].tolist()
    assert few.arrival_s == pytest.approx(50.0 * fast.arrival_s)


@pytest.mark.parametrize("seed", range(8))
def test_a_duration_takes_the_arrivals_before_its_end_and_no_fewer(seed: int) -> None:
    by_count = Traffic.drawn(rate_per_s=3.0, lengths=LENGTHS, seed=seed, requests=450)
    for duration_s in (0.01, 1.0, 20.0, 100.0):
        made = Traffic.drawn(rate_per_s=3.0, lengths=LENGTHS, seed=seed, duration_s=duration_s)
        expected = by_count.arrival_s[by_count.arrival_s < duration_s]
        assert made.arrival_s == pytest.approx(expected, rel=1e-12)


def test_lengths_are_not_drawn_from_the_stream_of_the_gaps() -> None:
    class Exponential:
        def draw_pairs(
            self, rng: np.random.Generator, requests: int
        ) -> tuple[np.ndarray, np.ndarray]:
            tokens = (1 + 1_000 * rng.exponential(1.0, requests)).astype(np.int64)
            return tokens, tokens

    made = Traffic.drawn(rate_per_s=1.0, lengths=Exponential(), seed=3, requests=10_000)
    gaps_s = np.diff(made.arrival_s, prepend=0.0)

    # Five standard errors of a correlation of 10,000 pairs; of one stream it would be 1.
    assert abs(np.corrcoef(gaps_s, made.prompt_tokens)[0, 1]) < 0.05


def test_the_seed_decides() -> None:
    one, again, other = (
        Traffic.drawn(rate_per_s=3.0, lengths=LENGTHS, seed=seed, requests=50) for seed in (8, 8, 9)
    )

    assert one.arrival_s.tolist() == again.arrival_s.tolist()
    assert prompts(one) == prompts(again)
    assert prompts(one) != prompts(other)


@given(whole=traffics(), cut_s=st.floats(0.1, 100))
def test_two_windows_that_meet_hold_every_request_once(whole: Traffic, cut_s: float) -> None:
    before, after = whole.window(0.0, cut_s), whole.window(cut_s, 1e6)

    assert prompts(before) + prompts(after) == prompts(whole)
    assert (before.arrival_s < cut_s).all()


def test_the_lengths_seen_make_more_requests_like_them() -> None:
    seen = traffic(0.0, 0.0, 0.0)
    more = Traffic.drawn(rate_per_s=1.0, lengths=seen.lengths, seed=1, requests=60)

    assert set(prompts(more)) == {10, 11, 12}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: traffic(2.0, 1.0), "arrival_s[1]"),
        (lambda: traffic(-1.0), "arrival_s[0]"),
        (lambda: traffic(0.0, float("nan")), "arrival_s[1]"),
        (lambda: traffic(float("inf")), "arrival_s[0]"),
        (
            lambda: Traffic(
                arrival_s=np.zeros(2),
                prompt_tokens=np.array([1, 0], dtype=np.int64),
                output_tokens=np.ones(2, dtype=np.int64),
            ),
            "prompt_tokens[1]",
        ),
        (
            lambda: Traffic(
                arrival_s=np.zeros(2),
                prompt_tokens=np.ones(2, dtype=np.int64),
                output_tokens=np.ones(1, dtype=np.int64),
            ),
            "output_tokens",
        ),
        (
            lambda: Traffic(
                arrival_s=np.zeros(1),
                prompt_tokens=np.ones(1),  # type: ignore[arg-type]
                output_tokens=np.ones(1, dtype=np.int64),
            ),
            "prompt_tokens",
        ),
        (lambda: traffic(0.0).window(1.0, 1.0), "window"),
        (lambda: traffic(0.0, 1.0).sped_up(0.0), "factor"),
        (lambda: Traffic.drawn(rate_per_s=1, lengths=LENGTHS, seed=1), "requests"),
        (
            lambda: Traffic.drawn(
                rate_per_s=1, lengths=LENGTHS, seed=1, requests=1, duration_s=1.0
            ),
            "requests",
        ),
        (
            lambda: Traffic.drawn(rate_per_s=0, lengths=LENGTHS, seed=1, requests=1),
            "rate_per_s",
        ),
    ],
)
def test_traffic_that_makes_no_sense_is_refused_by_name(
    make: Callable[[], object], field: str
) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(field)}="):
        make()


def test_a_recorded_trace_of_any_format_with_times_is_traffic(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    trace = Traffic.recorded(path)

    assert trace.arrival_s.tolist() == [0.0, 4.314_579]
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 109]
    path.write_text('{"timestamp": 9000, "input_length": 7, "output_length": 5}\n')
    assert Traffic.recorded(path).arrival_s.tolist() == [0.0]


def test_conversations_without_times_are_no_traffic(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(
        '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]'
    )
    with pytest.raises(FileError, match="is sharegpt: expected a trace with arrival times"):
        Traffic.recorded(path)


def talks(**more: object) -> Traffic:
    """Two conversations of three and two turns, and a request between them; prompts of 10 to 15."""
    waits = Sessions(
        after=np.array([-1, 0, 1, -1, -1, 4]), think_s=np.array([0.0, 2.0, 3.0, 0.0, 0.0, 4.0])
    )
    return replace(traffic(0.0, 0.0, 0.0, 1.0, 2.0, 2.0), sessions=waits, **more)


def waits(part: Traffic) -> tuple[list[int], list[float]]:
    assert part.sessions is not None
    return part.sessions.after.tolist(), part.sessions.think_s.tolist()


def test_the_first_requests_of_conversations_are_their_first_turns() -> None:
    assert waits(talks().first(5)) == ([-1, 0, 1, -1, -1], [0, 2, 3, 0, 0])
    assert waits(talks().first(2)) == ([-1, 0], [0, 2])


def test_chosen_turns_are_numbered_anew_and_need_the_turns_before() -> None:
    assert waits(talks().chosen(np.array([3, 4, 5]))) == ([-1, -1, 1], [0, 0, 4])
    with pytest.raises(OptionError, match=r"^chosen=2: expected request 1 beside it"):
        talks().chosen(np.array([0, 2, 3]))


def test_a_window_has_whole_conversations() -> None:
    assert waits(talks().window(0.0, 1.0)) == ([-1, 0, 1], [0, 2, 3])
    late = talks().window(1.0, 9.0)
    assert waits(late) == ([-1, -1, 1], [0, 0, 4])
    assert late.arrival_s.tolist() == [0, 1, 1]


def test_a_turn_that_does_not_fit_takes_the_later_turns_with_it() -> None:
    # Prompts of 10 to 15 tokens, replies of 3.
    assert prompts(talks().within_context(17)) == [10, 11, 12, 13, 14]
    long_first = replace(talks(), prompt_tokens=np.array([10, 99, 12, 13, 99, 15]))
    assert prompts(long_first.within_context(17)) == [10, 13]
    assert waits(long_first.within_context(17))[0] == [-1, -1]


def fan_out() -> Traffic:
    """A plan, two calls at once, a join of both; then a request of its own."""
    plan = Sessions(after=np.array([-1, 0, 0, 1, -1]), think_s=np.zeros(5), also=np.array([[3, 2]]))
    return replace(traffic(0.0, 0.0, 0.0, 0.0, 1.0), sessions=plan)


def test_a_join_needs_all_that_it_waits_for() -> None:
    with pytest.raises(OptionError, match=r"^chosen=3: expected request 2 beside it"):
        fan_out().chosen(np.array([0, 1, 3]))
    assert prompts(fan_out().within_context(15)) == [10, 11, 12]
    no_second = replace(fan_out(), prompt_tokens=np.array([10, 11, 99, 13, 14]))
    assert prompts(no_second.within_context(50)) == [10, 11, 14]
    merged, _ = Traffic.merged([traffic(0.0), fan_out()])
    assert waits(merged)[0] == [-1, -1, 1, 1, 2, -1]
    assert merged.sessions is not None
    assert merged.sessions.also is not None
    assert merged.sessions.also.tolist() == [[4, 3]]
    assert merged.sessions.heads.tolist() == [0, 1, 1, 1, 1, 5]
    assert waits(merged.window(1.0, 2.0))[0] == [-1]


def test_users_think_as_long_when_arrivals_are_sped_up() -> None:
    fast = talks().sped_up(2.0)

    assert fast.arrival_s.tolist() == [0, 0, 0, 0.5, 1, 1]
    assert waits(fast) == waits(talks())


def test_a_closed_loop_keeps_its_concurrency_and_has_no_windows() -> None:
    closed = talks(arrival_s=np.zeros(6), loops=ClosedLoops.one(6, concurrency=2))

    for part in (closed.first(3), closed.within_context(17)):
        assert part.loops is not None
        assert closed.loops is not None
        assert part.loops.of.tolist() == [0] * len(part)
        assert part.loops.pacers == closed.loops.pacers
    for make in (lambda: closed.window(0.0, 1.0), lambda: closed.sped_up(2.0)):
        with pytest.raises(OptionError, match="expected traffic with arrivals, not a closed loop"):
            make()


def test_priorities_stay_with_their_requests() -> None:
    first = replace(traffic(0.0, 2.0, 4.0), priority=np.array([2, 0, 1]))
    merged, of_part = Traffic.merged([first.sped_up(2.0), traffic(0.5, 1.5)])

    assert merged.priority is not None
    assert of_part.tolist() == [0, 1, 0, 1, 0]
    assert merged.priority.tolist() == [2, 0, 0, 0, 1]
    chosen = merged.window(1.0, 3.0).priority
    assert chosen is not None
    assert chosen.tolist() == [0, 0, 1]
    assert Traffic.merged([traffic(0.0), traffic(1.0)])[0].priority is None


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: replace(traffic(0.0), priority=np.array([1, 2])), "priority"),
        (lambda: replace(traffic(0.0), priority=np.array([1.0])), "priority"),
        (lambda: ClosedLoops.one(3, concurrency=0), "concurrency"),
        (lambda: talks(loops=ClosedLoops.one(3, concurrency=2)), "loops"),
        (lambda: ClosedLoops(of=np.array([-1, 0]), pacers=()), "of"),
        (lambda: replace(talks(), sessions=talks().first(5).sessions), "sessions"),
        (lambda: Sessions(after=np.array([-1]), think_s=np.zeros(2)), "think_s"),
        (lambda: Sessions(after=np.array([0]), think_s=np.zeros(1)), "after[0]"),
        (
            lambda: Sessions(after=np.array([-1, 0]), think_s=np.zeros(2), also=np.array([[1, 1]])),
            "after[1]",
        ),
        (lambda: replace(traffic(0.0), blocks=blocks_of([(1,), (2,)])), "blocks"),
    ],
)
def test_sessions_that_make_no_sense_are_refused_by_name(
    make: Callable[[], object], field: str
) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(field)}="):
        make()


def blocks_of(names: list[tuple[int, ...]]) -> PromptBlocks:
    return PromptBlocks.of(names, tokens=4, prompt_tokens=np.full(len(names), 10))


def test_names_that_only_one_request_has_can_be_left_out() -> None:
    shared = blocks_of([(1, 2, 3), (5,), (1, 2), ()]).shared()

    assert shared is not None
    assert shared.names.tolist() == [1, 2, 1, 2]
    assert shared.end_tokens.tolist() == [4, 8, 4, 8]
    assert shared.begin.tolist() == [0, 2, 2, 4, 4]
    assert blocks_of([(1, 2, 3), (5,)]).shared() is None
