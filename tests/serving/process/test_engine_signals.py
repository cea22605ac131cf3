"""An engine's process and the signals that end a server; this process stands for the engine's."""

import signal
import threading
from collections.abc import Iterator

import pytest

from serving.process.engine_signals import EngineSignals

NUMBERS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that vLLM's handler would have heard."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda heard, _: numbers.append(heard)) for number in NUMBERS
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_signals_pass_while_they_are_left_to_the_server(
    number: signal.Signals, heard: list[int]
) -> None:
    signals = EngineSignals()

    signal.raise_signal(number)
    signals.leave()
    signals.leave()
    signal.raise_signal(number)
    assert heard == [number]

    signals.heed()
    signals.heed()
    signal.raise_signal(number)
    assert heard == [number, number]


def test_what_an_engine_starts_meanwhile_is_ended_by_them() -> None:
    signals = EngineSignals()
    signals.leave()
    try:
        # An ignored signal stays ignored in a program that is started; one with a handler does not.
        assert all(signal.getsignal(number) is not signal.SIG_IGN for number in NUMBERS)
    finally:
        signals.heed()


def test_an_engine_in_a_user_s_thread_leaves_the_user_s_handlers(heard: list[int]) -> None:
    signals = EngineSignals()
    thread = threading.Thread(target=signals.leave)
    thread.start()
    thread.join()

    signal.raise_signal(signal.SIGTERM)
    signals.heed()

    assert heard == [signal.SIGTERM]
