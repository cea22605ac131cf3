from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.measures.definitions import DISTRIBUTIONS, RATES
from loadgen.measures.measurement import measure_run
from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.records.estimate import Estimate
from loadgen.records.result import Result
from loadgen.records.run_record import AskedArrivals, LoopLag, RunRecord
from tests.loadgen.measures.made_run import EMULATED_END, EMULATED_START, made_run, result


def p50(found: ClassMeasures, name: str) -> float:
    return found.distributions[name].percentiles[50.0].value


def rate(measures: RunMeasures, name: str) -> float:
    return measures.total.rates[name].value


def test_one_request_by_hand() -> None:
    # Due at 100 ms, sent at 110, chunks at 150, 170, 230: TTFT 50 (40 from send), E2E 130 (120);
    # TPOT (130 - 50) / 2 = 40, ITL 20 and 60, NTPOT 130 / 3; 25 tokens/s by TPOT, 3 / 0.13 by E2E.
    # Window 110 to 230 ms: 3 tokens / 0.12 s = 25/s; in flight all of it.
    measures = measure_run(made_run([result(100, 110, 150, 170, 230)]))

    assert {name: p50(measures.total, name) for name in measures.total.distributions} == {
        "ttft_ms": 50,
        "ttft_from_send_ms": 40,
        "tpot_ms": 40,
        "itl_ms": 40,
        "e2e_ms": 130,
        "e2e_from_send_ms": 120,
        "ntpot_ms": pytest.approx(130 / 3),
        "interactivity": 25,
        "interactivity_e2e": pytest.approx(3 / 0.13),
        "queueing_ms": 10,
    }
    itl = measures.total.distributions["itl_ms"]
    assert (itl.least, itl.most, itl.samples) == (20, 60, 2)
    assert measures.window_s == measures.wall_s == 0.12
    assert {name: each.value for name, each in measures.total.rates.items()} == pytest.approx(
        {
            "requests_per_s": 1 / 0.12,
            "input_tokens_per_s": 10 / 0.12,
            "output_tokens_per_s": 25,
            "total_tokens_per_s": 13 / 0.12,
            "in_flight": 1,
            "failed_share": 0,
        }
    )
    assert (measures.time, measures.dilation, measures.warnings) == ("wall", 1.0, ())


def test_energy_and_tokens_per_megawatt_by_hand() -> None:
    # Dilation 2: 400 wall ms from the send are 0.2 emulated s; 8 tokens: 40/s, 10/s on each of 4
    # chips. 200 J at the facility in 0.2 s: 1,000 W, 25 J a token, 40 / 0.001 MW = 40,000;
    # provisioned 2,000 W: 20,000. Chips: 120 J in 0.2 s: 600 W. 10 requests queued for 0.5 s:
    # 50 ms each; 25 of 100 prompt tokens were in the cache.
    run = made_run([result(0, 0, *range(50, 450, 50))], start=EMULATED_START, end=EMULATED_END)
    measures = measure_run(run)
    energy = measures.energy

    assert (measures.wall_s, measures.window_s, measures.time) == (0.4, 0.2, "emulated")
    assert rate(measures, "output_tokens_per_s") == pytest.approx(40)
    assert p50(measures.total, "ttft_ms") == p50(measures.total, "tpot_ms") == 25
    assert energy.tokens_per_s_per_chip == pytest.approx(10)
    assert energy.average_watts == pytest.approx(1000)
    assert energy.chip_average_watts == pytest.approx(600)
    assert energy.joules_per_output_token == pytest.approx(25)
    assert energy.output_tokens_per_s_per_mw == pytest.approx(40_000)
    assert energy.output_tokens_per_s_per_provisioned_mw == pytest.approx(20_000)
    assert energy.metered_s == pytest.approx(0.2)
    assert energy.server_queue_ms == pytest.approx(50)
    assert energy.prefix_hit_share == pytest.approx(0.25)


def test_tokens_of_one_chunk_share_its_gap_evenly() -> None:
    # 5 tokens in 3 chunks at 10, 30, 50 ms: 40 ms for the 4 tokens after the first, 10 ms each.
    total = measure_run(made_run([result(0, 0, 10, 30, 50, tokens=5)])).total

    assert p50(total, "tpot_ms") == 10
    assert total.distributions["itl_ms"].least == total.distributions["itl_ms"].most == 10
    assert (total.output_tokens, total.chunks) == (5, 3)


def test_a_reply_of_one_chunk_has_a_ttft_and_no_time_between_tokens() -> None:
    total = measure_run(made_run([result(0, 0, 30, tokens=8), result(0, 0, 40, tokens=1)])).total

    assert p50(total, "ttft_ms") == 35
    assert not {"tpot_ms", "itl_ms", "interactivity"} & set(total.distributions)


def test_failed_and_aborted_requests_are_counted_and_not_measured() -> None:
    measures = measure_run(
        made_run(
            [
                result(0, 5, 20, 30),
                result(0, 0, error="status 503", message="no room"),
                result(0, 0, error="status 503", message="still none"),
                result(0, 0, error="stream", message="unreadable"),
                result(0, 0, error="stream", message="too long"),
                result(0, 0, error="stream", message="too long"),
                result(0, 2, 9_000, error="cut off"),
                result(0, 3, 8_000, error="aborted"),
            ]
        )
    )
    total = measures.total

    assert (total.requests, total.completed, total.failed, total.aborted) == (8, 1, 6, 1)
    assert total.errors == {"aborted": 1, "cut off": 1, "status 503": 2, "stream": 3}
    assert total.example_errors["status 503"] == "no room"
    assert total.example_errors["stream"] == "too long"  # what most of them said
    assert total.output_tokens == 2
    assert p50(total, "e2e_ms") == 30
    assert measures.wall_s == 0.03  # from the first send of all to the last token that counts
    assert rate(measures, "failed_share") == 6 / 7


def test_counts_that_are_not_as_asked_are_noticed() -> None:
    found = measure_run(
        made_run(
            [result(0, 0, 1, 2, asked=4), result(0, 0, 1, 2, tokens=-1, asked=2), result(0, 0, 1)]
        )
    ).total

    assert (found.short_replies, found.long_replies) == (1, 0)
    assert (found.uncounted_replies, found.resized_prompts) == (1, 0)
    assert found.output_tokens == 5  # two chunks that were not counted are two tokens


def test_a_run_without_a_completed_request_has_no_figures_and_no_error() -> None:
    for results in ([], [result(0, 0, error="timeout")]):
        measures = measure_run(made_run(results, slo="ttft=1ms"))

        assert measures.window_s is None
        assert set(measures.total.rates) <= {"failed_share", "attainment"}
        assert set(measures.total.distributions) <= {"queueing_ms"}
        assert (measures.total.slo is None) == (not results)  # of nothing there is no verdict
        assert measures.total.slo is None or not measures.total.slo.kept


def test_what_is_skipped_is_sent_and_not_measured_but_its_tokens_come_in_the_window() -> None:
    # Skipped up to 100 ms: of the first reply's 4 tokens those at 120 and 140 ms come after that,
    # and its end does. The second is measured; the third is due too early and over too early.
    results = [
        result(50, 50, 80, 90, 120, 140),
        result(100, 100, 150, 200),
        result(0, 0, 10, 20),
    ]
    measures = measure_run(made_run(results, skip_s=0.1))

    assert (measures.total.requests, p50(measures.total, "ttft_ms")) == (1, 50)
    assert measures.wall_s == pytest.approx(0.1)
    assert rate(measures, "output_tokens_per_s") == pytest.approx(4 / 0.1)
    assert rate(measures, "requests_per_s") == pytest.approx(2 / 0.1)
    assert rate(measures, "input_tokens_per_s") == pytest.approx(10 / 0.1)
    assert rate(measures, "in_flight") == pytest.approx((0.04 + 0.1) / 0.1)


def test_energy_after_a_skipped_part_is_metered_from_its_end_on() -> None:
    at_skip = replace(EMULATED_START, emulated_s=10.1, facility_joules=250.0, dilation=None)
    results = [result(0, 0, 100), result(200, 200, 300, 400)]
    run = made_run(results, start=EMULATED_START, end=EMULATED_END, skip_s=0.1, skipped=at_skip)
    measures = measure_run(run)
    without = measure_run(replace(run, skipped=None))

    assert measures.energy.average_watts == pytest.approx(50 / 0.1)
    assert measures.energy.provisioned_watts == 2000
    assert (without.energy.average_watts, without.energy.provisioned_watts) == (None, 2000)
    assert any("skipped part" in warning for warning in without.warnings)


def test_joules_are_the_average_power_over_the_window_however_long_the_meters_ran() -> None:
    # 15 s of idling at 100 W were metered with the 0.2 s of the run, which took 200 J: 1,700 J in
    # 15.2 s are 111.8 W. The window's 0.2 s and 8 tokens: 40 tokens/s, 2.8 J each and not 212.5.
    end = replace(EMULATED_END, emulated_s=25.2, facility_joules=1_800.0)
    run = made_run([result(0, 0, *range(50, 450, 50))], start=EMULATED_START, end=end)
    measures = measure_run(run)
    energy = measures.energy

    assert energy.average_watts == pytest.approx(1_700 / 15.2)
    assert energy.joules_per_output_token == pytest.approx(1_700 / 15.2 * 0.2 / 8)
    assert energy.output_tokens_per_s_per_mw == pytest.approx(1e6 / energy.joules_per_output_token)
    assert any("time without load is in them" in warning for warning in measures.warnings)


def test_requests_of_all_classes_that_kept_their_own_slo_are_good_together() -> None:
    # Both bound TTFT at 30 ms. Of a, due at 0 and 20 ms, the second is late; b's, between them, is
    # not: 2 of 3 in a window of 80 ms.
    results = [
        result(20, 20, 60, 80, traffic_class="a"),
        result(10, 10, 30, 50, traffic_class="b"),
        result(0, 0, 10, 20, traffic_class="a"),
    ]
    run = made_run(results, classes=("a", "b"), slo="ttft=30ms")
    total = measure_run(run).total
    free = replace(run.header.classes[1], slo="")
    half = replace(run, header=replace(run.header, classes=(run.header.classes[0], free)))

    assert total.rates["attainment"].value == pytest.approx(2 / 3)
    assert total.rates["goodput_per_s"].value == pytest.approx(2 / 0.08)
    assert total.rates["goodput_tokens_per_s"].value == pytest.approx(4 / 0.08)
    assert total.slo is None
    assert not {"attainment", "goodput_per_s"} & set(measure_run(half).total.rates)


def test_more_chunks_than_tokens_leave_the_gaps_what_they_were() -> None:
    total = measure_run(made_run([result(0, 0, 100, 200, 300, 400, 500, tokens=3)])).total

    assert (total.distributions["itl_ms"].least, total.distributions["itl_ms"].most) == (100, 100)
    assert (p50(total, "tpot_ms"), total.overfull_replies) == (200, 1)


def test_no_failure_in_300_requests_is_as_sure_as_300_independent_ones_whatever_they_took() -> None:
    # Latencies that rise all the time depend on each other, and say nothing of errors.
    results = [result(at, at, at + 5 + at / 10) for at in range(300)]
    failed = measure_run(made_run(results)).total.rates["failed_share"]

    assert (failed.value, failed.low) == (0.0, 0.0)
    assert failed.high == pytest.approx(stats.binomtest(0, 300).proportion_ci(method="wilson").high)


def test_few_requests_have_rates_without_intervals_and_more_have_none_below_0() -> None:
    def rates(count: int) -> list[Estimate]:
        results = [result(at**3, at**3, at**3 + 5, at**3 + 9) for at in range(count)]
        return [
            each
            for name, each in measure_run(made_run(results)).total.rates.items()
            if name.endswith("per_s")
        ]

    assert {each.low for each in rates(9)} == {None}
    for each in rates(12):
        assert each.low is not None
        assert 0 < each.low < each.value


def test_classes_share_a_window_and_add_up() -> None:
    results = [
        result(0, 0, 50, 100, traffic_class="a"),
        result(0, 10, 100, 200, 400, traffic_class="b"),
        result(200, 200, traffic_class="b", error="timeout"),
    ]
    measures = measure_run(made_run(results, classes=("a", "b", "idle")))
    by_class = measures.classes

    assert list(by_class) == ["a", "b", "idle"]
    for name in ("requests_per_s", "output_tokens_per_s", "in_flight"):
        parts = sum(each.rates[name].value for each in by_class.values())
        assert rate(measures, name) == pytest.approx(parts)
    assert measures.total.requests == sum(each.requests for each in by_class.values())
    assert by_class["b"].failed == measures.total.failed == 1
    assert (by_class["idle"].requests, dict(by_class["idle"].distributions)) == (0, {})


def test_sessions_begin_with_their_first_turn_in_the_time_that_was_asked_for() -> None:
    # Ten sessions 100 wall ms apart, each with a later turn: 10 per wall s, 20 per emulated s.
    results = [result(at, at, at + 5) for at in range(0, 1_000, 100)]
    results += [result(at, at, at + 5, turn=1) for at in range(7, 1_000, 100)]

    for time, per_s in (("wall", 10), ("emulated", 20)):
        asked = AskedArrivals(words="", time=time)
        run = made_run(results, start=EMULATED_START, end=EMULATED_END, arrivals=asked)
        kept = measure_run(run).total.arrivals
        assert kept.rate_per_s == pytest.approx(per_s)
        assert kept.gap_cv == pytest.approx(0, abs=1e-9)


def test_a_run_that_was_killed_has_figures_and_says_so() -> None:
    measures = measure_run(replace(made_run([result(0, 0, 10, 20)]), end=None))

    assert p50(measures.total, "ttft_ms") == 10
    assert measures.loop_lag_p99_ms is None
    assert any("no end" in warning for warning in measures.warnings)


def with_lag(run: RunRecord, lag: LoopLag) -> RunRecord:
    assert run.end is not None
    return replace(run, end=replace(run.end, lags=(replace(lag, p99_ms=0.1), lag)))


def test_the_worst_worker_says_whether_the_load_generator_was_too_slow() -> None:
    run = made_run([result(0, 0, 100, 200)])
    idle = LoopLag(worker=1, p50_ms=0.1, p99_ms=1.5, max_ms=9, cpu_share=0.3)

    assert not measure_run(with_lag(run, idle)).saturated
    # 2 % of a TTFT of 100 ms are 2 ms.
    late = measure_run(with_lag(run, replace(idle, p99_ms=2.1)))
    busy = measure_run(with_lag(run, replace(idle, cpu_share=0.95)))
    assert (late.saturated, late.loop_lag_p99_ms) == (True, 2.1)
    assert (busy.saturated, busy.cpu_share) == (True, 0.95)
    assert [sum("load generator" in each for each in made.warnings) for made in (late, busy)] == [
        1,
        1,
    ]


replies = st.lists(
    st.tuples(
        st.integers(0, 10_000),  # due
        st.integers(0, 500),  # sent so much later
        st.lists(st.integers(0, 300), min_size=1, max_size=12),  # chunks so much later each
    ),
    min_size=1,
    max_size=12,
)


def as_results(drawn: list[tuple[int, int, list[int]]]) -> list[Result]:
    return [
        result(due, due + delay, *(due + delay + np.cumsum(gaps)).tolist())
        for due, delay, gaps in drawn
    ]


@pytest.mark.long
@given(drawn=replies)
def test_emulated_figures_are_the_wall_s_scaled_by_the_dilation(
    drawn: list[tuple[int, int, list[int]]],
) -> None:
    wall = measure_run(made_run(as_results(drawn)))
    emulated = measure_run(made_run(as_results(drawn), start=EMULATED_START, end=EMULATED_END))

    assert emulated.wall_s == wall.wall_s
    for definition in DISTRIBUTIONS:
        slow = wall.total.distributions.get(definition.name)
        fast = emulated.total.distributions.get(definition.name)
        assert (slow is None) == (fast is None)
        if slow is None or fast is None:
            continue
        scale = 0.5 if definition.unit == "ms" else 2.0
        for percentile, estimate in slow.percentiles.items():
            assert fast.percentiles[percentile].value == pytest.approx(estimate.value * scale)
    for name, found in wall.total.rates.items():
        scale = 1.0 if name in ("in_flight", "failed_share") else 2.0
        assert emulated.total.rates[name].value == pytest.approx(found.value * scale)


@pytest.mark.long
@given(drawn=replies)
def test_what_was_measured_is_what_a_slow_loop_over_the_results_says(
    drawn: list[tuple[int, int, list[int]]],
) -> None:
    results = as_results(drawn)
    found = measure_run(made_run(results)).total

    def spread(each: Result) -> bool:
        return each.chunk_ns.size > 1

    expected = {
        "ttft_ms": [(each.chunk_ns[0] - each.intended_ns) / 1e6 for each in results],
        "e2e_ms": [(each.chunk_ns[-1] - each.intended_ns) / 1e6 for each in results],
        "ntpot_ms": [
            (each.chunk_ns[-1] - each.intended_ns) / 1e6 / each.chunk_ns.size for each in results
        ],
        "tpot_ms": [
            (each.chunk_ns[-1] - each.chunk_ns[0]) / 1e6 / (each.chunk_ns.size - 1)
            for each in results
            if spread(each)
        ],
        "itl_ms": [
            (later - earlier) / 1e6
            for each in results
            for earlier, later in zip(each.chunk_ns[:-1], each.chunk_ns[1:], strict=True)
        ],
    }
    for name, values in expected.items():
        distribution = found.distributions.get(name)
        assert (distribution is not None) == bool(values)
        if distribution is None:
            continue
        assert distribution.samples == len(values)
        assert distribution.mean.value == pytest.approx(np.mean(values), abs=1e-9)
        for percentile, estimate in distribution.percentiles.items():
            assert estimate.value == pytest.approx(np.percentile(values, percentile), abs=1e-9)


def test_every_figure_that_is_measured_is_defined() -> None:
    run = made_run([result(0, 1, 10, 20), result(5, 6, 20, 40)], slo="ttft=1s")
    found = measure_run(run).total

    assert set(found.distributions) == {each.name for each in DISTRIBUTIONS}
    assert set(found.rates) == {each.name for each in RATES}
