"""Latency targets as a user writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.traffic.slo import Slo


def test_one_percentile_at_the_end_holds_for_both_terms() -> None:
    slo = Slo.parse("ttft=500ms,tpot=30ms@p95")

    assert slo.terms() == (("ttft", 0.5, 95.0), ("tpot", 0.03, 95.0))


def test_each_term_may_have_its_own_percentile() -> None:
    assert Slo.parse("tpot=250us@p99.9,ttft=2s@p50").terms() == (
        ("ttft", 2.0, 50.0),
        ("tpot", 0.00025, 99.9),
    )


def test_without_a_percentile_it_is_p99() -> None:
    assert Slo.parse("tpot=30ms").terms() == (("tpot", 0.03, 99.0),)
    assert Slo.parse("ttft=1s@p90,tpot=30ms").terms() == (("ttft", 1.0, 90.0), ("tpot", 0.03, 99.0))


def test_levels_promise_one_time_each() -> None:
    ttft, tpot = Slo.parse("ttft=1s@p90,tpot=30ms").levels()

    assert (ttft.ttft_s, ttft.tpot_s, ttft.share) == (1.0, float("inf"), 0.9)
    assert (tpot.ttft_s, tpot.tpot_s, tpot.share) == (float("inf"), 0.03, 0.99)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft=500",
        "ttft=500ms,",
        "ttft=-1s",
        "ttft=0ms",
        "ttft=1s,ttft=2s",
        "itl=3ms",
        "ttft=1s@p49",
        "ttft=1s@p100",
        "ttft=1s@99",
        "ttft=1h",
        "ttft=nan s",
        "ttft=1s tpot=2s",
    ],
)
def test_a_malformed_target_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="ttft=500ms,tpot=30ms@p99") as refusal:
        Slo.parse(text)

    assert "\n" not in str(refusal.value)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.sampled_from([50, 90, 99, 99.9]))
def test_what_was_written_is_what_is_promised(ttft_ms: int, tpot_us: int, at: float) -> None:
    slo = Slo.parse(f"ttft={ttft_ms}ms,tpot={tpot_us}us@p{at}")

    assert slo.ttft_s == pytest.approx(ttft_ms / 1e3)
    assert slo.tpot_s == pytest.approx(tpot_us / 1e6)
    assert {percentile for _, _, percentile in slo.terms()} == {at}
