from loadgen.records.server_reading import ServerReading, ServerWindow


def test_a_window_is_the_growth_of_each_counter() -> None:
    start = ServerReading(
        dilation=2, emulated_s=10, lag_s=1, chip_joules=100, facility_joules=150, chips=4
    )
    end = ServerReading(
        dilation=2, emulated_s=13, lag_s=1, chip_joules=400, facility_joules=600, chips=4
    )
    window = ServerWindow(start=start, end=end)

    assert (window.dilation, window.emulated, window.dilation_changed) == (2, True, False)
    assert (window.emulated_s, window.lag_s) == (3, 0)
    assert (window.chip_joules, window.facility_joules, window.chips) == (300, 450, 4)


def test_a_counter_that_is_missing_or_fell_has_no_growth() -> None:
    before, after = ServerReading(emulated_s=5, lag_s=1), ServerReading(emulated_s=4)
    window = ServerWindow(start=before, end=after)

    assert window.emulated_s is None  # the server was started anew
    assert window.lag_s is None
    assert window.facility_joules is None
    assert (window.dilation, window.emulated) == (1.0, False)


def test_a_clock_that_was_changed_is_noticed() -> None:
    window = ServerWindow(start=ServerReading(dilation=2), end=ServerReading(dilation=4))

    assert window.dilation_changed
