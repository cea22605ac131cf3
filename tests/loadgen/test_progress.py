import asyncio
import io

import pytest
from rich.console import Console

from loadgen.progress import LiveCounts, ProgressSettings, show_progress
from loadgen.result import Result


def result(first_ms: int, error: str | None = None) -> Result:
    return Result(
        request_id=0,
        intended_ns=0,
        sent_ns=0,
        chunk_ns=(first_ms * 1_000_000,) if error is None else (),
        asked_input_tokens=1,
        asked_output_tokens=1,
        input_tokens=1,
        output_tokens=1,
        error=error,
        message="",
        dilation=4.0,
    )


def counts() -> LiveCounts:
    made = LiveCounts(total=10, total_tokens=200)
    made.add_result(result(100))
    made.add_result(result(300))
    made.add_result(result(0, error="timeout"))
    made.add_chunks(80)
    return made


def test_the_line_gives_rates_in_the_run_s_time_and_the_time_left_in_wall_time() -> None:
    # 8 wall s are 2 emulated s: 3 ended and 80 chunks; TTFT 100 and 300 wall ms are 25 and 75;
    # 120 of 200 tokens are left, at 80 in 8 wall s: 12 s.
    line = counts().line(elapsed_wall_s=8.0, time_word="emulated", dilation=4.0)

    assert line == "3/10  40 tok/s  1.5 req/s  TTFT p50 50.0 ms  (emulated)  errors 1  ETA 0:12"


def test_where_chunks_carry_many_tokens_the_time_left_is_told_by_requests() -> None:
    made = LiveCounts(total=10, total_tokens=100_000)
    for _ in range(5):
        made.add_chunks(1)
        made.add_result(result(100))

    assert made.line(elapsed_wall_s=60.0, time_word="wall", dilation=1.0).endswith("ETA 1:00")


def test_before_the_first_reply_the_time_left_is_unknown() -> None:
    line = LiveCounts(total=10, total_tokens=200).line(
        elapsed_wall_s=1.0, time_word="wall", dilation=1.0
    )

    assert line == "0/10  0 tok/s  0.0 req/s  TTFT p50 -  (wall)  errors 0  ETA -"


def shown(*, terminal: bool, quiet: bool, width: int = 120) -> str:
    file = io.StringIO()
    settings = ProgressSettings(
        console=Console(file=file, force_terminal=terminal, width=width),
        time_word="emulated",
        dilation=4.0,
        quiet=quiet,
    )

    async def show_a_while() -> None:
        task = asyncio.create_task(show_progress(counts(), settings))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(show_a_while())
    return file.getvalue()


def test_a_pipe_gets_a_plain_line_even_from_a_short_run() -> None:
    text = shown(terminal=False, quiet=False)

    assert text.startswith("3/10  ")
    assert text.endswith("\n")
    assert "\x1b" not in text


@pytest.mark.parametrize(("width", "bar"), [(120, True), (80, False)])
def test_a_terminal_gets_a_line_with_a_bar_if_it_fits_and_is_put_back_in_order(
    width: int, bar: bool
) -> None:
    text = shown(terminal=True, quiet=False, width=width)

    assert "3/10  " in text
    assert "ETA 0:" in text
    assert ("━━━━" in text) is bar
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    assert shown(terminal=terminal, quiet=True) == ""
