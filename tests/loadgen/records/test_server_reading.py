from loadgen.records.server_reading import ServerReading, ServerWindow


def test_a_window_is_the_growth_of_each_counter() -> None:
    start = ServerReading(
        dilation=2, emulated_s=10, lag_s=1, chip_joules=100, facility_joules=150, chips=4
    )
    end = ServerReading(
        dilation=2, emulated_s=13, lag_s=1, chip_joules=400, facility_joules=600, chips=4
    )
    window = ServerWindow(start=start, end=end)

    assert (window.emulated, window.dilation_changed) == (True, False)
    assert window.growth() == ServerReading(
        emulated_s=3, lag_s=0, chip_joules=300, facility_joules=450
    )


def test_a_counter_that_is_missing_or_fell_has_no_growth() -> None:
    before, after = ServerReading(emulated_s=5, lag_s=1), ServerReading(emulated_s=4)
    window = ServerWindow(start=before, end=after)

    # The server was started anew: its seconds fell. The end has no lag, and neither has energy.
    assert window.growth() == ServerReading()
    assert not window.emulated


def test_a_clock_that_was_changed_is_noticed() -> None:
    window = ServerWindow(start=ServerReading(dilation=2), end=ServerReading(dilation=4))

    assert window.dilation_changed
