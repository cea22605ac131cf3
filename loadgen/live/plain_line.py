"""A moment of the run in a line, for logs and pipes."""

from loadgen.live.live_figures import (
    LiveClassFigures,
    LiveFigures,
    clock_words,
    errors_in_words,
    three_digits,
)


def plain_line(seen: LiveFigures) -> str:
    """One line: progress, rates and latencies with their time, and the time left."""
    several = len(seen.classes) > 1
    parts = [
        clock_words(seen.elapsed_wall_s),
        *([f"{seen.phase}..."] if seen.phase else []),
        *(_class_text(each, named=several) for each in seen.classes),
        f"{three_digits(seen.tokens_per_s)} tokens/s",
        f"({seen.time} time)",
        f"errors {seen.total.failed}"
        + (f" ({errors_in_words(seen.errors)})" if seen.total.failed else ""),
        *(
            [f"loop lag {three_digits(seen.loop_lag_ms)} ms"]
            if seen.loop_lag_ms is not None
            else []
        ),
        f"ETA {clock_words(seen.left_wall_s)}",
    ]
    return "  ".join(parts)


def _class_text(seen: LiveClassFigures, *, named: bool) -> str:
    name = f"{seen.name}: " if named else ""
    return "  ".join(
        [
            f"{name}{_ended_words(seen)}",
            f"{seen.in_flight:,} in flight",
            f"{three_digits(seen.sent_per_s)}/s",
            f"TTFT p50 {three_digits(seen.ttft.p50_ms)} p99 {three_digits(seen.ttft.p99_ms)} ms",
            f"TPOT p50 {three_digits(seen.tpot.p50_ms)} p99 {three_digits(seen.tpot.p99_ms)} ms",
        ]
    )


def _ended_words(seen: LiveClassFigures) -> str:
    """`68 completed, 32 failed of 100`: failed requests are over, and not completed."""
    failed = f", {seen.failed:,} failed" if seen.failed else ""
    whole = "" if seen.requests is None else f" of {seen.requests:,}"
    return f"{seen.completed:,} completed{failed}{whole}"
