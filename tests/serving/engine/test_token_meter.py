"""Tokens and energy of the last minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from serving.engine.token_meter import WINDOW_S, TokenMeter, TokenTotals
from tests.serving.telemetry.recorded_steps import DECODE, PREFILL


def add(meter: TokenMeter, at_s: float, batch: StepBatch = PREFILL, *, joules: float = 0.0) -> None:
    meter.add(batch, output_tokens=2, emulated_s=at_s, facility_joules=joules)


def window_of(meter: TokenMeter) -> TokenTotals | None:
    """The window that ends with the last step."""
    return meter.window_until(meter.totals.emulated_s, meter.totals.facility_joules)


def test_two_steps_by_hand() -> None:
    meter = TokenMeter()
    assert window_of(meter) is None
    add(meter, 0.25, PREFILL, joules=100.0)
    prompts = int(PREFILL.new_tokens.sum())
    add(meter, 0.5, DECODE, joules=150.0)
    window = window_of(meter)

    assert window is not None
    assert (window.emulated_s, window.prompt_tokens, window.output_tokens) == (0.5, prompts, 4)
    assert window.facility_joules == 150.0
    assert meter.totals == window


def test_what_is_older_than_the_window_is_out_of_it() -> None:
    meter = TokenMeter()
    for second in range(1, 200):
        add(meter, float(second), DECODE, joules=10.0 * second)
    window = window_of(meter)

    assert window is not None
    assert window.emulated_s == WINDOW_S
    assert window.output_tokens == 2 * 60
    assert window.facility_joules == 600.0
    assert meter.totals.output_tokens == 2 * 199


@pytest.mark.long
@given(st.lists(st.floats(0.001, 90.0), min_size=1, max_size=80))
def test_a_window_is_a_minute_and_holds_few_samples(gaps_s: list[float]) -> None:
    meter, now_s, ends_s = TokenMeter(), 0.0, [0.0]
    for gap_s in gaps_s:
        now_s += gap_s
        ends_s.append(now_s)
        add(meter, now_s, DECODE)
        window = window_of(meter)
        assert window is not None
        begin_s = now_s - window.emulated_s
        # It is as long as the window, as far as there was a step; a second or a step more.
        assert window.output_tokens == 2 * sum(end_s > begin_s + 1e-9 for end_s in ends_s[1:])
        assert begin_s <= max(0.0, now_s - WINDOW_S) + 1e-9
        assert len(meter._samples) <= WINDOW_S + 2


def test_rests_without_a_token_leave_no_samples_behind() -> None:
    meter = TokenMeter()
    for hour in range(100):
        begin_s = 3_600.0 * hour
        meter.rest(
            begin_s=begin_s, begin_joules=begin_s, end_s=begin_s + 3_000, end_joules=begin_s + 3_000
        )
    assert len(meter._samples) <= 3


def test_after_a_rest_a_window_begins_in_it_and_not_before() -> None:
    meter = TokenMeter()
    add(meter, 10.0, DECODE, joules=1_000.0)
    # An hour of 100 W, 50 s of which belong to the window of the step that ends 10 s after it.
    meter.rest(begin_s=10.0, begin_joules=1_000.0, end_s=3_610.0, end_joules=361_000.0)
    add(meter, 3_620.0, DECODE, joules=363_000.0)
    window = window_of(meter)
    assert window is not None
    assert window.emulated_s == WINDOW_S
    assert window.output_tokens == 2
    assert window.facility_joules == 50 * 100.0 + 2_000.0

    # It rests again: five seconds of 100 W more.
    window = meter.window_until(3_625.0, 363_500.0)
    assert window is not None
    assert (window.emulated_s, window.output_tokens) == (WINDOW_S, 2)
    assert window.facility_joules == 45 * 100.0 + 2_500.0


def test_a_window_without_a_step_is_a_minute_of_the_rest() -> None:
    meter = TokenMeter()
    add(meter, 1.0, DECODE, joules=50.0)
    window = meter.window_until(601.0, 6_050.0)

    assert window is not None
    assert (window.emulated_s, window.output_tokens) == (WINDOW_S, 0)
    assert window.facility_joules == 600.0


@given(st.lists(st.tuples(st.floats(1.5, 500.0), st.floats(0.001, 1.0)), min_size=1, max_size=60))
def test_whatever_the_rests_a_window_holds_the_steps_in_it_and_their_joules(
    each: list[tuple[float, float]],
) -> None:
    meter, now_s, ends_s = TokenMeter(), 0.0, [0.0]
    for rest_s, step_s in each:
        begin_s, now_s = now_s, now_s + rest_s
        meter.rest(begin_s=begin_s, begin_joules=begin_s, end_s=now_s, end_joules=now_s)
        now_s += step_s
        ends_s.append(now_s)
        add(meter, now_s, DECODE, joules=now_s)  # one watt all the time
        window = window_of(meter)
        assert window is not None
        # A step is at most a second: so much older may the window be.
        assert min(now_s, WINDOW_S) - 1e-6 <= window.emulated_s <= WINDOW_S + 1.0 + 1e-6
        begin_s = now_s - window.emulated_s
        assert window.output_tokens == 2 * sum(end_s > begin_s + 1e-6 for end_s in ends_s[1:])
        assert abs(window.facility_joules - window.emulated_s) < 1e-6 * now_s
        assert len(meter._samples) <= 2 * WINDOW_S
