import asyncio
import io
import time

import pytest
from rich.console import Console

from loadgen.live.live_counts import LiveCounts
from loadgen.live.live_figures import LiveFiguresTaker, clock_words, count_words, three_digits
from loadgen.live.live_view import live_view
from loadgen.live.screen import screen
from tests.loadgen.live.made_counts import class_header, header, result


def fill(counts: LiveCounts, *names: str) -> None:
    """Two seconds ago a dispatch began, and three replies have come of each class."""
    classes = tuple(class_header(name) for name in names)
    counts.begin(header(*classes), time.monotonic_ns() - 2_000_000_000)
    for name in names:
        counts.set_in_flight(name, 5)
        counts.add_result(result(name=name, first_ms=100, gaps_ms=(40,), tokens=2))
        counts.add_result(result(name=name, error="timeout"))
        counts.add_chunks(name, 2)
    counts.set_lag(0, 0.31)


def shown(*, terminal: bool, quiet: bool = False, width: int = 120, begin: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width)
    counts = LiveCounts()

    async def show_a_while() -> None:
        async with live_view(counts, console=console, quiet=quiet):
            counts.say("making prompts")
            await asyncio.sleep(0.01)
            if begin:
                fill(counts, "chat")
            await asyncio.sleep(0.07)

    asyncio.run(show_a_while())
    return file.getvalue()


def test_a_pipe_gets_plain_lines_even_from_a_short_run() -> None:
    lines = shown(terminal=False).splitlines()

    assert lines[0] == "making prompts..."
    assert "1 completed, 1 failed of 10  3 in flight" in lines[1]
    assert "(emulated time)" in lines[1]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("begin", [True, False])
def test_a_terminal_gets_a_picture_and_is_put_back_in_order(begin: bool) -> None:
    text = shown(terminal=True, begin=begin)

    assert ("TTFT" in text) is begin
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    assert shown(terminal=terminal, quiet=True) == ""


def test_what_goes_wrong_within_passes_through_and_the_terminal_is_put_back() -> None:
    file = io.StringIO()

    async def fail() -> None:
        async with live_view(LiveCounts(), console=Console(file=file, force_terminal=True)):
            await asyncio.sleep(0.01)
            raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"):
        asyncio.run(fail())
    assert file.getvalue().rstrip().endswith("\x1b[?25h")


def drawn(width: int, *names: str) -> list[str]:
    counts = LiveCounts()
    fill(counts, *names)
    console = Console(width=width, force_terminal=False, file=io.StringIO())
    with console.capture() as captured:
        console.print(screen(LiveFiguresTaker(counts).take(2.0), width=width))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 110, 130, 160])
def test_the_picture_fits_and_keeps_every_figure(width: int) -> None:
    lines = drawn(width, "chat", "a-class-with-a-long-name")
    text = "\n".join(lines)

    assert max(map(len, lines)) <= width
    (chat,) = [line for line in lines if line.strip().startswith("chat ")]
    # 2 wall s are 0.5 emulated s: 5 sent, 2 ended; 100 and 40 wall ms are 25 and 10.
    cells = chat.split()[-9:]
    assert cells == ["1/10", "3", "10.0", "4.00", "25.0", "25.0", "10.0", "10.0", "1"]
    for words in ("emulated time (1 s is 4 wall s)", "loop lag 0.31 ms", "2 failed: 2 timeout"):
        assert words in text
    assert text.count("Poisson, 4 sessions per emulated s") == 2
    (whole,) = [line for line in lines if line.strip().startswith("all ")]
    assert "2/20" in whole


def test_one_class_has_no_row_for_all() -> None:
    assert not [line for line in drawn(110, "chat") if line.strip().startswith("all ")]


def test_words_keep_their_width() -> None:
    assert [clock_words(each) for each in (None, 0.2, 71, 3_723)] == [
        "-",
        "0:01",
        "1:11",
        "1:02:03",
    ]
    assert [three_digits(each) for each in (None, 0.456, 9.999, 45.67, 1_234.5)] == [
        "-",
        "0.46",
        "10.0",
        "45.7",
        "1,234",
    ]
    assert [count_words(12, None), count_words(12, 1_000)] == ["12", "12/1,000"]
