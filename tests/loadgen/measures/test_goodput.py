import pytest

from loadgen.measures.measurement import measure_run
from loadgen.measures.run_measures import SloKept
from loadgen.records.result import Result
from tests.loadgen.measures.made_run import EMULATED_END, EMULATED_START, made_run, result


def kept(results: list[Result], slo: str) -> SloKept:
    found = measure_run(made_run(results, slo=slo)).total.slo
    assert found is not None
    return found


def test_goodput_by_hand() -> None:
    # TTFT 10, 30, 10 ms; TPOT 10, 10, 50 ms: only the first keeps both. It has 3 tokens; the window
    # is 0 to 110 ms.
    results = [result(0, 0, 10, 20, 30), result(0, 0, 30, 40, 50), result(0, 0, 10, 60, 110)]
    found = kept(results, "ttft=20ms,tpot=20ms@p50")

    assert found.attainment is not None
    assert found.attainment.value == pytest.approx(1 / 3)
    assert found.goodput_per_s == pytest.approx(1 / 0.11)
    assert found.goodput_tokens_per_s == pytest.approx(3 / 0.11)
    assert [(bound.value, bound.kept) for bound in found.bounds] == [(10, True), (10, True)]


def test_limits_are_in_emulated_time_where_the_server_has_it() -> None:
    # 30 wall ms at dilation 2 are 15 emulated ms.
    run = made_run([result(0, 0, 30, 40)], slo="ttft=16ms", start=EMULATED_START, end=EMULATED_END)
    found = measure_run(run).total.slo

    assert found is not None
    assert (found.bounds[0].value, found.kept) == (15, True)


def test_a_failed_request_is_infinitely_late_and_an_aborted_one_says_nothing() -> None:
    results = [result(0, 0, 10, 20) for _ in range(9)]
    aborted = kept([*results, result(0, 0, error="aborted")], "ttft=20ms@p90,e2e=1s@p95")
    failed = kept([*results, result(0, 0, error="timeout")], "ttft=20ms@p90,e2e=1s@p85")

    assert aborted.kept
    assert aborted.attainment is not None
    assert aborted.attainment.value == 1
    # The 90th percentile of ten lies between the ninth and the tenth, which never came.
    assert [(bound.value, bound.kept) for bound in failed.bounds] == [(None, False), (20, True)]
    assert failed.attainment is not None
    assert failed.attainment.value == 0.9


def test_a_request_keeps_a_limit_on_itl_if_that_share_of_its_gaps_does() -> None:
    # Ten gaps of 10 ms, of which one is 100: 90 % of them are within 20 ms.
    chunks = [10 * each for each in range(1, 11)]
    slow = result(0, 0, *chunks, chunks[-1] + 100)

    for percentile, share in ((90, 1.0), (91, 0.0)):
        found = kept([slow], f"itl=20ms@p{percentile}").attainment
        assert found is not None
        assert found.value == share


def test_a_bound_that_nothing_shows_to_be_kept_is_not_kept_and_said() -> None:
    run = made_run([result(0, 0, 10, tokens=1)], slo="tpot=10ms")
    measures = measure_run(run)

    assert measures.total.slo is not None
    assert not measures.total.slo.kept
    assert any("the SLO bounds tpot_ms" in warning for warning in measures.warnings)
