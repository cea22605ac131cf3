from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.errors import LoadError
from loadgen.measures.comparison import Comparison, Difference
from loadgen.measures.difference import FALSE_DISCOVERIES, compare, judged
from tests.loadgen.measures.made_run import (
    EMULATED_END,
    EMULATED_START,
    made_run,
    result,
    served,
)


def figure(comparison: Comparison, name: str, statistic: str = "") -> Difference:
    (found,) = (
        each
        for each in comparison.differences
        if (each.figure, each.statistic, each.traffic_class) == (name, statistic, "")
    )
    return found


def test_three_runs_a_side_by_hand() -> None:
    # TTFT 10, 11, 12 ms against 20, 21, 22: ten apart with a standard error of
    # sqrt(1 / 3 + 1 / 3); relative to the means of 11 and 21.
    sides = [
        [made_run([result(0, 0, at, at + 10)]) for at in range(least, least + 3)]
        for least in (10, 20)
    ]
    found = compare(*sides)
    ttft = figure(found, "ttft_ms", "p50")

    assert (ttft.a, ttft.b, ttft.verdict) == (11, 21, "worse")
    assert ttft.relative == pytest.approx(10 / 11)
    error = np.sqrt(1 / 3 / 11**2 + 1 / 3 / 21**2)
    assert ttft.low == pytest.approx(np.exp(np.log(21 / 11) - 2.95 * error) - 1, rel=0.05)
    assert (found.a.runs, found.b.runs, found.notes) == (3, 3, ())
    assert "Welch" in found.method


@pytest.mark.long
def test_a_run_against_itself_differs_nowhere() -> None:
    run = served(0)
    found = compare([run], [run])

    assert found.beyond_noise == ()
    assert {each.relative for each in found.differences} <= {0.0, None}


@pytest.mark.slow
def test_equal_servers_differ_in_about_5_of_100_comparisons_at_most() -> None:
    # 40 comparisons of independent runs, some 40 figures each: with a chance of 5 % for any
    # difference, more than 6 of 40 are seen once in 220 times.
    flagged = sum(
        bool(compare([served(2 * at)], [served(2 * at + 1, run_seed=1)]).beyond_noise)
        for at in range(40)
    )

    assert flagged <= 6


@pytest.mark.slow
def test_a_server_that_is_a_third_slower_is_seen_and_the_interval_holds_it() -> None:
    held = 0
    for seed in range(10):
        found = compare([served(seed)], [served(seed + 100, slower=1.33, run_seed=1)])
        itl = figure(found, "itl_ms", "p50")
        assert (itl.verdict, figure(found, "ttft_ms", "mean").verdict) == ("worse", "worse")
        assert figure(found, "interactivity", "p50").verdict == "worse"
        assert itl.low is not None
        assert itl.high is not None
        held += itl.low <= 0.33 <= itl.high

    assert held >= 8


@pytest.mark.long
def test_the_same_requests_are_compared_pairwise_and_less_is_seen() -> None:
    # 3 % more on every reply, of which the replies themselves vary by far more.
    pairs = [(served(seed), served(seed, slower=1.03)) for seed in range(5)]
    paired = [figure(compare([a], [b]), "ttft_ms", "mean") for a, b in pairs]
    apart = [
        figure(compare([a], [replace(b, header=replace(b.header, seed=1))]), "ttft_ms", "mean")
        for a, b in pairs
    ]

    assert [each.verdict for each in paired] == ["worse"] * 5
    assert [each.verdict for each in apart] == ["within noise"] * 5


def test_a_percentile_that_too_few_samples_lie_beyond_is_not_judged() -> None:
    found = compare([served(0)], [served(1, slower=3, run_seed=1)])

    p99 = figure(found, "ttft_ms", "p99")  # 4 of 400 requests lie beyond
    assert (p99.verdict, p99.low, p99.p_value) == ("unknown", None, None)
    assert p99.relative is not None
    assert figure(found, "itl_ms", "p99").verdict == "worse"  # of 1,600 gaps 16 do


def test_a_meter_that_was_read_once_is_shown_and_not_judged() -> None:
    ends = (EMULATED_END, replace(EMULATED_END, facility_joules=400.0))
    runs = [
        made_run([result(at, at, at + 50) for at in range(0, 400, 10)], start=EMULATED_START, end=e)
        for e in ends
    ]
    found = compare([runs[0]], [runs[1]])

    joules = figure(found, "joules_per_output_token")
    assert (joules.relative, joules.verdict) == (pytest.approx(0.5), "unknown")
    assert figure(found, "tokens_per_s_per_chip").verdict == "within noise"


def test_an_slo_s_attainment_is_compared() -> None:
    found = compare(
        [served(0, slo="ttft=20ms")], [served(1, slower=3, run_seed=1, slo="ttft=20ms")]
    )

    assert figure(found, "attainment").verdict == "worse"
    assert figure(found, "goodput_per_s").verdict == "worse"


def test_a_figure_that_may_have_been_nothing_has_not_become_less_than_that() -> None:
    # Goodput comes in one burst: in some replicas there is none of it.
    runs = [
        made_run(
            [result(at, at, at + (5 if at < least else 50)) for at in range(0, 1_000, 20)],
            slo="ttft=10ms",
            seed=seed,
        )
        for seed, least in enumerate((200, 60))
    ]
    found = figure(compare([runs[0]], [runs[1]]), "goodput_per_s")

    assert found.low == -1.0
    assert all(
        each.low is None or each.low >= -1 for each in compare(*([run] for run in runs)).differences
    )


def test_what_can_and_what_cannot_be_judged_is_told_apart() -> None:
    found = compare([served(0)], [served(1, slower=3, run_seed=1)])

    assert ("ttft_ms", "p99") in {(each.figure, each.statistic) for each in found.unknown}
    assert not set(found.beyond_noise) & set(found.unknown)


@pytest.mark.long
def test_short_single_runs_are_said_to_be_noisier_than_they_show() -> None:
    def notes(requests: int, runs: int) -> str:
        sides = [[served(seed + at, requests=requests) for seed in range(runs)] for at in (0, 10)]
        return " ".join(compare(*sides).notes)

    assert "a run of 300 requests" in notes(300, 1)
    assert "requests shows too little" not in notes(1_000, 1)
    assert notes(300, 3) == ""


def test_three_runs_a_side_are_judged_as_scipy_s_welch_test_of_logarithms_of_like_size() -> None:
    # With little spread the logarithm's deviation is the relative one.
    firsts = ([100.0, 101.0, 102.5], [103.0, 103.2, 105.0])
    sides = [[made_run([result(0, 0, at, at + 10)]) for at in side] for side in firsts]
    found = figure(compare(*sides), "ttft_ms", "p50")
    theirs = stats.ttest_ind(np.log(firsts[0]), np.log(firsts[1]), equal_var=False)

    assert found.p_value == pytest.approx(theirs.pvalue, rel=0.02)


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_false_discovery_rate_is_held_as_scipy_holds_it(p_values: list[float]) -> None:
    differences = [
        Difference(figure="in_flight", statistic="", traffic_class="", a=1.0, b=2.0, p_value=each)
        for each in p_values
    ]
    theirs = stats.false_discovery_control(p_values) <= FALSE_DISCOVERIES

    assert [each.beyond_noise for each in judged(differences)] == theirs.tolist()


def test_classes_are_compared_one_by_one_too() -> None:
    def run(seed: int) -> list[object]:
        return [
            replace(each, traffic_class=name)
            for name in ("a", "b")
            for each in served(seed, requests=50).results
        ]

    sides = [[made_run(run(seed), classes=("a", "b"))] for seed in (0, 1)]  # type: ignore[arg-type]
    found = compare(*sides)

    assert {each.traffic_class for each in found.differences} == {"", "a", "b"}
    assert found.differences[0].traffic_class == ""


@pytest.mark.long
def test_what_sets_the_sides_apart_is_named() -> None:
    a, b = served(0), served(1, run_seed=7)
    found = compare([a], [replace(b, header=replace(b.header, model="other"))])

    assert found.apart == {"model": ("m", "other"), "seed": ("0", "7")}
    assert any("3 runs or more" in note for note in found.notes)


@pytest.mark.long
def test_a_measured_and_a_simulated_run_differ_in_what_both_say() -> None:
    live, other = served(0), served(0)
    (only,) = other.header.classes
    simulated = replace(
        other,
        header=replace(
            other.header,
            simulated=True,
            workers=0,
            start=replace(other.header.start, info={"max_num_seqs": "256"}),
            classes=(replace(only, api=None, prompts="", slo="ttft=1s@p99"),),
        ),
    )
    found = compare([live], [simulated])

    assert found.apart == {"run": ("measured", "simulated"), "slo": ("", "ttft=1s@p99")}
    of_client = [each for each in found.differences if each.figure == "queueing_ms"]
    assert {(each.b, each.verdict) for each in of_client} == {(None, "unknown")}
    ttft = figure(found, "ttft_ms", "p50")
    assert (ttft.relative, ttft.verdict) == (0.0, "within noise")
    of_two = compare([simulated], [simulated])
    assert of_two.apart == {}
    assert any("a restart of the server" in note for note in found.notes)
    assert not any("server, another placement" in note for note in of_two.notes)


def test_emulated_time_is_not_compared_with_wall_time() -> None:
    emulated = made_run([result(0, 0, 9)], start=EMULATED_START, end=EMULATED_END)

    with pytest.raises(LoadError, match="wall time"):
        compare([served(0, requests=20)], [emulated])
    with pytest.raises(LoadError, match="either side"):
        compare([], [emulated])


def test_sides_without_a_completed_request_are_compared_without_an_error() -> None:
    found = compare([made_run([])], [made_run([result(0, 0, error="timeout")])])

    assert found.beyond_noise == ()
