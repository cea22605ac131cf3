import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure import Measures, measure
from loadgen.percentiles import Percentiles
from loadgen.result import Result
from loadgen.server_clock import ServerReading, ServerWindow

MS = 1_000_000
WALL = ServerWindow(start=ServerReading(), end=ServerReading())
EMULATED = ServerWindow(
    start=ServerReading(
        dilation=2.0,
        emulated_s=10.0,
        lag_s=0.0,
        chip_joules=0.0,
        facility_joules=100.0,
        provisioned_watts=2000.0,
        chips=4.0,
    ),
    end=ServerReading(
        dilation=2.0, emulated_s=10.2, lag_s=0.01, chip_joules=120.0, facility_joules=300.0
    ),
)


def result(
    intended_ms: float,
    sent_ms: float,
    *chunk_ms: float,
    tokens: int | None = None,
    asked: int | None = None,
    error: str | None = None,
    dilation: float = 1.0,
) -> Result:
    """A result in wall ms; as many tokens as chunks, unless said otherwise."""
    counted = len(chunk_ms) if tokens is None else tokens
    return Result(
        request_id=0,
        intended_ns=int(intended_ms * MS),
        sent_ns=int(sent_ms * MS),
        chunk_ns=tuple(int(at_ms * MS) for at_ms in chunk_ms),
        asked_input_tokens=10,
        asked_output_tokens=counted if asked is None else asked,
        input_tokens=10,
        output_tokens=None if tokens == -1 else counted,
        error=error,
        message="",
        dilation=dilation,
    )


def one(value: float) -> Percentiles:
    return Percentiles(p50=value, p90=value, p99=value)


def test_one_request_by_hand() -> None:
    # Due at 100 ms, sent at 110, chunks at 150, 170, 230: TTFT 50 (40 from the send), E2E 130,
    # TPOT (130 - 50) / 2 = 40, ITL 20 and 60. Window 110 to 230 ms: 3 tokens / 0.12 s = 25/s.
    measures = measure([result(100, 110, 150, 170, 230)], WALL)

    assert measures.ttft_ms == one(50)
    assert measures.ttft_from_send_ms == one(40)
    assert measures.e2e_ms == one(130)
    assert measures.tpot_ms == one(40)
    assert (measures.itl_ms.p50, measures.itl_ms.p90) == (40, 56)
    assert measures.itl_ms.p99 == pytest.approx(59.6)
    assert measures.send_delay_ms == one(10)
    assert measures.window_s == measures.wall_s == 0.12
    assert measures.output_tokens_per_s == pytest.approx(25)
    assert (measures.input_tokens, measures.output_tokens, measures.chunks) == (10, 3, 3)
    assert measures.total_tokens_per_s == pytest.approx(13 / 0.12)


def test_energy_and_tokens_per_megawatt_by_hand() -> None:
    # Dilation 2: 400 wall ms from the send are 0.2 emulated s; 8 tokens: 40/s, 10/s on each of 4
    # chips. 200 J at the facility in 0.2 s: 1,000 W, 25 J a token, 40 / 0.001 MW = 40,000;
    # provisioned 2,000 W: 20,000. Chips: 120 J in 0.2 s: 600 W.
    measures = measure([result(0, 0, *range(50, 450, 50), dilation=2.0)], EMULATED)

    assert measures.wall_s == 0.4
    assert measures.window_s == 0.2
    assert measures.output_tokens_per_s == pytest.approx(40)
    assert measures.tokens_per_s_per_chip == pytest.approx(10)
    assert measures.average_watts == pytest.approx(1000)
    assert measures.chip_average_watts == pytest.approx(600)
    assert measures.joules_per_output_token == pytest.approx(25)
    assert measures.output_tokens_per_s_per_facility_mw == pytest.approx(40_000)
    assert measures.output_tokens_per_s_per_provisioned_mw == pytest.approx(20_000)
    assert measures.lag_s == pytest.approx(0.01)
    assert measures.metered_s == pytest.approx(0.2)
    assert measures.ttft_ms == one(25)
    assert measures.tpot_ms == one(25)


def test_tokens_of_one_chunk_share_its_gap_evenly() -> None:
    # 5 tokens in 3 chunks at 10, 30, 50 ms: 40 ms for the 4 tokens after the first, 10 ms each.
    measures = measure([result(0, 0, 10, 30, 50, tokens=5)], WALL)

    assert measures.tpot_ms == one(10)
    assert measures.itl_ms == one(10)
    assert (measures.output_tokens, measures.chunks) == (5, 3)


def test_a_reply_of_one_chunk_has_a_ttft_and_no_time_between_tokens() -> None:
    measures = measure([result(0, 0, 30, tokens=8), result(0, 0, 40, tokens=1)], WALL)

    assert measures.ttft_ms.p50 == 35
    assert measures.tpot_ms.p50 is None
    assert measures.itl_ms.p50 is None


def test_failed_and_aborted_requests_are_counted_and_not_measured() -> None:
    measures = measure(
        [
            result(0, 5, 20, 30),
            result(0, 0, error="status 503"),
            result(0, 1, error="status 503"),
            result(0, 2, 9_000, error="connection"),
            result(0, 3, 8_000, error="aborted"),
        ],
        WALL,
    )

    assert measures.requests == 5
    assert (measures.completed_requests, measures.failed_requests) == (1, 3)
    assert measures.aborted_requests == 1
    assert measures.errors == {"aborted": 1, "connection": 1, "status 503": 2}
    assert measures.output_tokens == 2
    assert measures.e2e_ms == one(30)
    assert measures.wall_s == 0.03  # from the first send of all to the last token that counts


def test_counts_that_are_not_as_asked_are_noticed() -> None:
    measures = measure(
        [result(0, 0, 1, 2, asked=4), result(0, 0, 1, 2, tokens=-1, asked=2), result(0, 0, 1)],
        WALL,
    )

    assert measures.short_replies == 1
    assert measures.uncounted_replies == 1  # its two chunks count as two tokens
    assert measures.output_tokens == 5
    assert measures.resized_prompts == 0


def test_a_run_without_a_completed_request_has_no_figures_and_no_error() -> None:
    for results in ([], [result(0, 0, error="timeout")]):
        measures = measure(results, EMULATED if not results else WALL)

        assert measures.window_s is None
        assert measures.output_tokens_per_s is None
        assert measures.joules_per_output_token is None
        assert measures.ttft_ms == Percentiles(p50=None, p90=None, p99=None)


def test_results_of_another_dilation_are_refused() -> None:
    with pytest.raises(ValueError, match="dilation"):
        measure([result(0, 0, 1)], EMULATED)


def test_a_result_out_of_order_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="before"):
        result(10, 9)
    with pytest.raises(ValueError, match="before the send"):
        result(0, 5, 4)


replies = st.lists(
    st.tuples(
        st.integers(0, 10_000),  # due
        st.integers(0, 500),  # sent so much later
        st.lists(st.integers(0, 300), min_size=1, max_size=12),  # chunks so much later each
    ),
    min_size=1,
    max_size=12,
)


def as_results(drawn: list[tuple[int, int, list[int]]], dilation: float) -> list[Result]:
    made = []
    for due, delay, gaps in drawn:
        at, chunks = due + delay, []
        for gap in gaps:
            at += gap
            chunks.append(at)
        made.append(result(due, due + delay, *chunks, dilation=dilation))
    return made


@given(drawn=replies)
def test_emulated_figures_are_the_wall_s_scaled_by_the_dilation(
    drawn: list[tuple[int, int, list[int]]],
) -> None:
    wall = measure(as_results(drawn, 1.0), WALL)
    emulated = measure(as_results(drawn, 2.0), EMULATED)

    for name in ("ttft_ms", "ttft_from_send_ms", "tpot_ms", "itl_ms", "e2e_ms", "send_delay_ms"):
        for percentile in ("p50", "p90", "p99"):
            slow = getattr(getattr(wall, name), percentile)
            fast = getattr(getattr(emulated, name), percentile)
            assert fast == (None if slow is None else pytest.approx(slow / 2))
    assert emulated.wall_s == wall.wall_s


@given(drawn=replies)
def test_what_was_measured_holds_together(drawn: list[tuple[int, int, list[int]]]) -> None:
    results = as_results(drawn, 1.0)
    measures: Measures = measure(results, WALL)

    assert measures.requests == measures.completed_requests == len(drawn)
    assert measures.output_tokens == sum(len(gaps) for _, _, gaps in drawn)
    for name in ("p50", "p90", "p99"):
        from_due = getattr(measures.ttft_ms, name)
        assert from_due >= getattr(measures.ttft_from_send_ms, name)
        assert getattr(measures.e2e_ms, name) >= from_due
