"""How surely a bound is kept: Wilson's interval against SciPy's, and queues whose tail is known."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.measures.intervals import wilson
from loadgen.measures.slo import Bound, Slo
from loadgen.records.result import Result
from loadgen.records.run_record import RunRecord
from loadgen.sweeps.bound_shares import Held, bound_share, held, samples_needed, verdict_of
from tests.loadgen.sweeps.queue_run import QueueRun, exponential, queue_options, record

TTFT = Bound(measure="ttft_ms", limit=200.0, percentile=99.0)


def queue_run(queue: QueueRun, *, rate: float, requests: int, seed: int) -> RunRecord:
    options = queue_options(requests=requests, seed=seed)
    (each,) = options.classes
    loaded = replace(each, arrivals=replace(each.arrivals, rate=f"{rate}"))
    return asyncio.run(queue(replace(options, classes=(loaded,)), ""))


def served(latencies_ms: list[float], *, skip_s: float = 0.0, fails: int = 0) -> RunRecord:
    """A request a second, one after another; the first `fails` of them failed."""
    due_s = np.arange(len(latencies_ms), dtype=np.float64)
    failed = np.arange(len(latencies_ms)) < fails
    options = queue_options(requests=len(latencies_ms), skip_s=skip_s)
    return record(options, due_s, due_s + np.array(latencies_ms) / 1e3, failed)


def test_by_hand() -> None:
    found = held(served([100, 150, 200, 201]), "default", TTFT)

    assert (found.samples, found.kept) == (4, 3)


def test_a_failed_request_keeps_nothing_and_a_skipped_one_says_nothing() -> None:
    assert held(served([100] * 4, fails=2), "default", TTFT).kept == 2
    skipped = held(served([900, 900, 100, 100], skip_s=2.0), "default", TTFT)
    assert (skipped.samples, skipped.kept) == (2, 2)
    assert held(served([100]), "another", TTFT).samples == 0


def test_what_we_aborted_ourselves_says_nothing() -> None:
    run = served([100, 100])
    first, second = run.results
    aborted: Result = replace(first, error="aborted")

    found = held(replace(run, results=(aborted, second)), "default", TTFT)
    assert (found.samples, found.kept) == (1, 1)


@pytest.mark.parametrize(
    ("kept", "verdict"), [(1_000, "kept"), (990, "undecided"), (970, "missed")]
)
def test_a_bound_is_kept_or_missed_where_the_whole_interval_says_so(
    kept: int, verdict: str
) -> None:
    run = Held(samples=1_000, kept=kept, inflation=1.0)

    assert bound_share([run], traffic_class="a", bound=TTFT, tail=0.025).verdict == verdict


def test_more_runs_decide_what_one_leaves_open() -> None:
    run = Held(samples=300, kept=300, inflation=1.0)
    one, two = (
        bound_share([run] * count, traffic_class="a", bound=TTFT, tail=0.025) for count in (1, 2)
    )

    assert (one.verdict, two.verdict) == ("undecided", "kept")
    assert (two.samples, two.words, two.needed) == (600, "ttft=200ms@p99", 0.99)


def test_samples_that_depend_on_each_other_are_worth_fewer() -> None:
    run = Held(samples=900, kept=900, inflation=3.0)
    found = bound_share([run], traffic_class="a", bound=TTFT, tail=0.025)

    assert (found.effective, found.verdict) == (300, "undecided")


def test_without_a_sample_nothing_is_decided() -> None:
    run = Held(samples=0, kept=0, inflation=1.0)

    assert bound_share([run], traffic_class="a", bound=TTFT, tail=0.025).verdict == "undecided"


def test_one_bound_missed_is_all_missed() -> None:
    def share(kept: int) -> Held:
        return Held(samples=1_000, kept=kept, inflation=1.0)

    kept, open_, missed = (
        bound_share([share(each)], traffic_class="a", bound=TTFT, tail=0.025)
        for each in (1_000, 990, 900)
    )
    assert verdict_of([kept, kept]) == "kept"
    assert verdict_of([kept, open_]) == "undecided"
    assert verdict_of([kept, open_, missed]) == "missed"


@given(st.integers(1, 5_000), st.data(), st.sampled_from([0.025, 0.0125, 0.005]))
def test_wilson_s_interval_is_scipy_s(count: int, data: st.DataObject, tail: float) -> None:
    kept = data.draw(st.integers(0, count))
    low, high = wilson(kept / count, count, tail=tail)
    theirs = stats.binomtest(kept, count).proportion_ci(1 - 2 * tail, method="wilson")

    assert low == pytest.approx(theirs.low, abs=1e-9)
    assert high == pytest.approx(theirs.high, abs=1e-9)


@given(st.floats(50, 99.9), st.sampled_from([0.025, 0.0125, 0.005]))
def test_the_samples_needed_are_the_fewest_that_can_be_kept(percentile: float, tail: float) -> None:
    level = Slo.parse(f"ttft=200ms@p{percentile:.4f}")
    (bound,) = level.bounds
    needed = samples_needed(level, tail=tail)

    def verdict(samples: int) -> str:
        run = Held(samples=samples, kept=samples, inflation=1.0)
        return bound_share([run], traffic_class="a", bound=bound, tail=tail).verdict

    assert verdict(needed) == "kept"
    assert needed == 1 or verdict(needed - 1) == "undecided"


@pytest.mark.long
def test_in_a_queue_the_interval_holds_the_true_share_about_as_often_as_it_says() -> None:
    """M/M/1 at 70 % load: P(T > t) = exp(-(mu - lambda) t), and neighbours wait together.

    Intervals of 95 % that took requests for independent would hold it in about half of the runs.
    """
    limit_ms, rate = 100.0, 70.0
    truth = 1 - math.exp(-(100 - rate) * limit_ms / 1e3)
    bound = Bound(measure="ttft_ms", limit=limit_ms, percentile=90.0)
    queue = QueueRun(service=exponential(0.01))
    right = naive = 0
    for seed in range(40):
        run = held(queue_run(queue, rate=rate, requests=1_500, seed=seed), "default", bound)
        found = bound_share([run], traffic_class="a", bound=bound, tail=0.025)
        right += found.low <= truth <= found.high
        low, high = wilson(run.kept / run.samples, run.samples, tail=0.025)
        naive += low <= truth <= high

    assert naive < 30
    assert right >= 33  # 38 expected of 40; fewer than 33 are a chance of 1 in 300
