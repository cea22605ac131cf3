import pickle
from dataclasses import replace

import numpy as np
import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import asked, make_pacer
from loadgen.arrivals.schedule import ArrivalSchedule
from loadgen.errors import OptionError

S = 1_000_000_000
POISSON = ArrivalSpec(rate="4")
PAUSED = ArrivalSpec(rate="series:0s=0,60s=0,60s=5")
BURSTY = ArrivalSpec(rate="4", gaps="gamma", burstiness=0.25)


def scheduled(
    spec: ArrivalSpec, sessions: int | None = None, recorded_ns: list[int] | None = None
) -> list[int]:
    pacer = make_pacer(spec, sessions=sessions, recorded_ns=recorded_ns, seed=1)
    assert isinstance(pacer, ArrivalSchedule)
    return [int(due_ns) for due_ns in pacer.due_ns]


def test_even_gaps_of_four_a_second_are_a_quarter_of_a_second() -> None:
    due_ns = scheduled(replace(POISSON, gaps="constant"), sessions=3)

    assert due_ns == [0, 250_000_000, 500_000_000]


def test_recorded_times_are_used_where_no_rate_is_asked_for() -> None:
    recorded_ns = [5 * S, 7 * S, 9 * S, 11 * S]

    assert scheduled(ArrivalSpec(), None, recorded_ns) == [0, 2 * S, 4 * S, 6 * S]
    assert scheduled(ArrivalSpec(speedup=2.0), 3, recorded_ns) == [0, S, 2 * S]
    assert scheduled(ArrivalSpec(duration_s=4.0), None, recorded_ns) == [0, 2 * S]
    assert scheduled(replace(POISSON, gaps="constant"), 2, recorded_ns) == [0, 250_000_000]


def test_a_series_of_times_is_as_long_as_it_was_written_unless_told_otherwise() -> None:
    day = ArrivalSpec(rate="series:0s=10,10s=10,20s=0", gaps="constant")

    assert len(scheduled(day)) == 150
    assert len(scheduled(replace(day, duration_s=5.0))) == 50
    assert len(scheduled(day, sessions=7)) == 7


def test_a_closed_loop_ends_with_its_duration() -> None:
    spec = ArrivalSpec(concurrency="ramp:1-8/1m", duration_s=90.0)

    pacer = make_pacer(spec, sessions=None, recorded_ns=None, seed=1)

    assert isinstance(pacer, ClosedLoop)
    assert pacer.ends_ns == 90 * S
    assert pacer.pace(elapsed_ns=60 * S, sent=0, in_flight=7) == 60 * S


def test_one_seed_gives_one_schedule_and_another_another() -> None:
    first, again, other = (
        make_pacer(BURSTY, sessions=50, recorded_ns=None, seed=seed) for seed in (1, 1, 2)
    )

    assert isinstance(first, ArrivalSchedule)
    assert isinstance(again, ArrivalSchedule)
    assert isinstance(other, ArrivalSchedule)
    assert first.due_ns.tolist() == again.due_ns.tolist() != other.due_ns.tolist()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (POISSON, "Poisson, 4 per emulated s"),
        (
            replace(POISSON, gaps="constant", duration_s=60.0),
            "even gaps, 4 per emulated s, for 60 s",
        ),
        (BURSTY, "gamma gaps (burstiness 0.25), 4 per emulated s"),
        (ArrivalSpec(), "recorded times"),
        (ArrivalSpec(speedup=2.5), "recorded times, 2.5 times as fast"),
        (ArrivalSpec(concurrency="ramp:1-8/1m"), "closed loop, ramp:1-8/1m sessions in flight"),
    ],
)
def test_what_was_asked_is_said_in_words(spec: ArrivalSpec, words: str) -> None:
    pacer = make_pacer(spec, sessions=3, recorded_ns=[0, S, 2 * S], seed=1)

    assert asked(spec, pacer, time="emulated").words == words


def test_what_was_asked_is_said_in_the_numbers_of_the_schedule_itself() -> None:
    even = replace(POISSON, gaps="constant")
    pacer = make_pacer(even, sessions=1_000, recorded_ns=None, seed=1)

    found = asked(even, pacer, time="wall")

    assert found.rate_per_s == pytest.approx(4.0)
    assert (found.gap_cv, found.dispersion) == (0.0, pytest.approx(0.0, abs=0.02))
    assert (found.asked_rate_per_s, found.asked_gap_cv) == (4.0, 0.0)
    assert (found.time, found.concurrency) == ("wall", None)


def test_burstiness_is_seen_in_the_spread_that_was_asked_for() -> None:
    pacer = make_pacer(BURSTY, sessions=20_000, recorded_ns=None, seed=1)

    found = asked(BURSTY, pacer, time="wall")

    assert found.rate_per_s == pytest.approx(4.0, rel=0.05)
    assert found.gap_cv == pytest.approx(2.0, rel=0.05)
    assert (found.asked_rate_per_s, found.asked_gap_cv) == (4.0, 2.0)  # 1 / sqrt(0.25)
    assert found.dispersion is not None
    assert found.dispersion > 2.5  # towards cv^2 = 4 as the bins grow


def test_the_rate_that_was_asked_for_is_told_apart_from_the_few_sessions_that_were_drawn() -> None:
    spec = ArrivalSpec(rate="60")
    pacer = make_pacer(spec, sessions=3, recorded_ns=None, seed=1)

    found = asked(spec, pacer, time="wall")

    assert isinstance(pacer, ArrivalSchedule)
    assert (found.asked_rate_per_s, found.asked_gap_cv) == (60.0, 1.0)
    assert found.rate_per_s == pytest.approx(2e9 / (pacer.due_ns[2] - pacer.due_ns[0]))
    assert found.rate_per_s != pytest.approx(60.0, rel=0.01)


@pytest.mark.parametrize(
    ("rate", "mean_per_s"),
    [
        # up to 20 a second within the 10 s: 10 on average
        ("ramp:0-20/10s", 10.0),
        ("series:0s=2,10s=2,10s=6,20s=6", 4.0),
        ("sine:5,5,20s", 5.0),
    ],
)
def test_of_a_rate_that_changes_the_mean_was_asked_for_and_no_spread_of_gaps(
    rate: str, mean_per_s: float
) -> None:
    duration_s = 10.0 if rate.startswith("ramp") else 20.0
    spec = ArrivalSpec(rate=rate, gaps="constant", duration_s=duration_s)
    pacer = make_pacer(spec, sessions=None, recorded_ns=None, seed=1)

    found = asked(spec, pacer, time="wall")

    assert found.asked_rate_per_s == pytest.approx(mean_per_s, rel=0.02)
    assert found.asked_gap_cv is None


def test_recorded_times_ask_for_themselves() -> None:
    pacer = make_pacer(ArrivalSpec(), sessions=3, recorded_ns=[0, S, 3 * S], seed=1)

    found = asked(ArrivalSpec(), pacer, time="wall")

    assert (found.asked_rate_per_s, found.asked_gap_cv) == (None, None)
    assert found.rate_per_s == pytest.approx(2 / 3)


def test_a_closed_loop_has_a_concurrency_and_no_rate() -> None:
    spec = ArrivalSpec(concurrency="series:0s=2,10s=9,20s=4")
    pacer = make_pacer(spec, sessions=5, recorded_ns=None, seed=1)

    found = asked(spec, pacer, time="wall")

    assert (found.concurrency, found.rate_per_s, found.gap_cv) == (9, None, None)


def test_a_pacer_goes_to_another_process_and_is_the_same_there() -> None:
    pacer = make_pacer(POISSON, sessions=9, recorded_ns=None, seed=1)

    there = pickle.loads(pickle.dumps(pacer.part(1, 3)))

    assert there.due_ns.tolist() == scheduled(POISSON, 9)[1::3]
    assert np.diff(there.due_ns).min() >= 0


@pytest.mark.parametrize(
    ("spec", "sessions", "refusal"),
    [
        (POISSON, None, "--rate=4: expected --requests or --duration"),
        (ArrivalSpec(duration_s=5.0), None, "--rate=None: expected a rate"),
        (ArrivalSpec(), 5, "--rate=None: expected a rate"),
        (ArrivalSpec(rate="sine:4,2,10s"), None, "--requests or --duration"),
        (ArrivalSpec(concurrency="4"), None, "--concurrency=4: expected --requests or --duration"),
        (ArrivalSpec(rate="4", concurrency="4"), 5, "not both it and --rate"),
        (ArrivalSpec(concurrency="many"), 5, "--concurrency=many: expected N, ramp"),
        (ArrivalSpec(concurrency="sine:4,2,9s"), 5, "--concurrency=sine:4,2,9s: expected N"),
        (ArrivalSpec(concurrency="ramp:0-4/9s"), 5, "never below 1"),
        (replace(BURSTY, burstiness=0.0), 5, "--burstiness=0.0: expected more than 0"),
        (replace(BURSTY, burstiness=float("nan")), 5, "--burstiness=nan"),
        (ArrivalSpec(rate="4", burstiness=2.0), 5, "--burstiness=2.0: expected --arrivals gamma"),
        (ArrivalSpec(speedup=0.0), 5, "--speedup=0.0"),
        (ArrivalSpec(rate="4", speedup=2.0), 5, "--speedup=2.0: expected recorded times"),
        (replace(POISSON, duration_s=0.0), 5, "--duration=0.0"),
        (ArrivalSpec(rate="1e9", duration_s=1.0), None, "at most 100,000,000 sessions"),
        (replace(PAUSED, duration_s=60.0), None, "a session within the --duration"),
        (replace(PAUSED, duration_s=60.0), 5, "a session within the --duration"),
    ],
)
def test_what_does_not_go_together_or_has_no_end_is_refused_in_one_line(
    spec: ArrivalSpec, sessions: int | None, refusal: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make_pacer(spec, sessions=sessions, recorded_ns=None, seed=1)

    assert refusal in str(refused.value)
    assert "\n" not in str(refused.value)
