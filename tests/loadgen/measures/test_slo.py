import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OptionError
from loadgen.measures.definitions import DISTRIBUTIONS
from loadgen.measures.slo import MEASURES, Bound, Slo


def test_the_last_percentile_holds_for_the_terms_before_it() -> None:
    level = Slo.parse("ttft=200ms, tpot=20ms@p99.9")

    assert level.bounds == (
        Bound(measure="ttft_ms", limit=200.0, percentile=99.9),
        Bound(measure="tpot_ms", limit=20.0, percentile=99.9),
    )
    assert level.words == "ttft=200ms,tpot=20ms@p99.9"


def test_a_term_may_have_a_percentile_of_its_own_and_p99_is_meant_without_one() -> None:
    bounds = Slo.parse("ttft=0.2s@p95,itl=500us,e2e=1.5s@p50,ntpot=30ms").bounds

    assert [(each.measure, each.limit, each.percentile) for each in bounds] == [
        ("ttft_ms", 200.0, 95.0),
        ("itl_ms", 0.5, 50.0),
        ("e2e_ms", 1500.0, 50.0),
        ("ntpot_ms", 30.0, 99.0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft=200",
        "ttft=200ms,",
        "ttft=-1ms",
        "ttft=0ms",
        "ttft=200ms@p100",
        "ttft=200ms@p0",
        "ttft=200ms@99",
        "speed=1ms",
        "ttft=1d",
        "ttft=200ms,ttft=100ms",
        "ttft=٢ms",
        "ttft=" + "9" * 400 + "s",
    ],
)
def test_anything_else_is_refused_in_one_line_that_shows_it(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"^--slo=.*expected.*ttft=200ms,tpot=20ms@p99$"
    ) as caught:
        Slo.parse(text)

    assert "\n" not in str(caught.value)


def test_one_measure_may_be_bounded_at_two_percentiles() -> None:
    assert len(Slo.parse("ttft=100ms@p50,ttft=200ms@p99").bounds) == 2


def test_every_bound_is_on_a_figure_that_is_defined() -> None:
    assert set(MEASURES.values()) <= {each.name for each in DISTRIBUTIONS if each.unit == "ms"}


@given(
    terms=st.lists(
        st.tuples(
            st.sampled_from(sorted(MEASURES)),
            st.integers(1, 10_000),
            st.sampled_from(["us", "ms", "s"]),
            st.floats(1, 99).map(lambda each: round(each, 1)),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda term: term[0],
    )
)
def test_what_is_written_in_full_is_read_as_it_stands(
    terms: list[tuple[str, int, str, float]],
) -> None:
    text = ",".join(f"{name}={limit}{unit}@p{at}" for name, limit, unit, at in terms)

    in_ms = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    assert [(each.measure, each.limit, each.percentile) for each in Slo.parse(text).bounds] == [
        (MEASURES[name], pytest.approx(limit * in_ms[unit], rel=1e-12), at)
        for name, limit, unit, at in terms
    ]


def test_a_bound_is_a_time_as_all_others_are_written() -> None:
    bounds = Slo.parse("ttft=1m30s,e2e=1h@p50").bounds

    assert [bound.limit for bound in bounds] == [90e3, 3_600e3]
