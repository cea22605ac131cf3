from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import FileError
from loadgen.workloads.azure2023 import HEADER, read_azure2023
from loadgen.workloads.recording import Recording
from loadgen.workloads.trace_lines import TOKENS_MAX

GOOD = "2023-11-16 18:15:46.6805900,374,44"


def columns(recording: Recording) -> list[tuple[int, int, int]]:
    return list(
        zip(
            recording.arrivals_ns.tolist(),
            recording.input_tokens.tolist(),
            recording.output_tokens.tolist(),
            strict=True,
        )
    )


def write(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_bytes("\n".join(lines).encode())
    return path


def test_rows_of_2024_have_microseconds_and_their_zone(tmp_path: Path) -> None:
    rows = ("2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01+00:00,2399,6")
    assert columns(read_azure2023(write(tmp_path, HEADER, *rows))) == [
        (0, 2162, 5),
        (990_070_000, 2399, 6),
    ]
    other = write(tmp_path, HEADER, "2024-05-10 00:00:00+02:00,1,1")
    with pytest.raises(FileError, match="is not like 2023-11-16"):
        read_azure2023(other)


def test_rows_are_read_in_order_with_arrivals_counted_from_the_first(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER,
        GOOD,
        "2023-11-16 18:15:46.6805901,1,2",  # the seventh digit counts
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-17 00:00:00,5,6",  # without a fraction
    )

    assert columns(read_azure2023(path)) == [
        (0, 374, 44),
        (100, 1, 2),
        (4_314_579_000, 396, 109),
        (20_653_319_410_000, 5, 6),
    ]


def test_line_ends_a_mark_at_the_start_and_a_missing_last_newline_do_not_matter(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(f"\ufeff{HEADER}\r\n{GOOD}\r\n{GOOD}".encode())

    assert len(read_azure2023(path)) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        # too few and too many fields
        ("2023-11-16 18:15:46.6805900,374", "expected 3 fields, found 2"),
        (f"{GOOD},7", "expected 3 fields, found 4"),
        ("", "an empty line"),
        # timestamps of another form, and of no day that there is
        ("16/11/2023 18:15:46,374,44", "TIMESTAMP '16/11/2023 18:15:46' is not like"),
        ("2023-11-16T18:15:46.6805900,374,44", "is not like"),
        ("2023-11-16 18:15:46.,374,44", "is not like"),
        ("2023-02-30 18:15:46.0000000,374,44", "is not a time that exists"),
        ("2023-11-16 25:15:46.0000000,374,44", "is not a time that exists"),
        # token counts that are no whole numbers, nothing, or beyond belief
        ("2023-11-16 18:15:47.0000000,374.0,44", "ContextTokens '374.0' is not a whole number"),
        ("2023-11-16 18:15:47.0000000,-1,44", "ContextTokens '-1' is not a whole number"),
        ("2023-11-16 18:15:47.0000000, 374,44", "ContextTokens ' 374' is not a whole number"),
        ("2023-11-16 18:15:47.0000000,٣,44", "is not a whole number"),
        ("2023-11-16 18:15:47.0000000,,44", "ContextTokens '' is not a whole number"),
        ("2023-11-16 18:15:47.0000000,0,44", "ContextTokens 0 is not in 1 to"),
        ("2023-11-16 18:15:47.0000000,374,0", "GeneratedTokens 0 is not in 1 to"),
        (f"2023-11-16 18:15:47.0000000,374,{TOKENS_MAX + 1}", "GeneratedTokens 10000001 is not in"),
        # a clock that goes back, by one tick
        ("2023-11-16 18:15:46.6805899,374,44", "before that of the row above"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    path = write(tmp_path, HEADER, GOOD, row, GOOD)

    with pytest.raises(FileError) as caught:
        read_azure2023(path)

    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected the header TIMESTAMP,ContextTokens,GeneratedTokens, found ''"),
        (f"{GOOD}\n".encode(), "expected the header"),
        (f"{HEADER}\n".encode(), "has no row"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)

    with pytest.raises(FileError, match=reason):
        read_azure2023(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.csv: No such file"):
        read_azure2023(tmp_path / "nothing.csv")


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 10**13),  # a gap in ticks: up to eleven days
            st.integers(1, TOKENS_MAX),
            st.integers(1, TOKENS_MAX),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_tick_and_length_that_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    lines, ticks = [HEADER], 0
    expected = []
    for position, (gap, input_tokens, output_tokens) in enumerate(rows):
        ticks += gap if position else 0
        seconds, fraction = divmod(ticks, 10_000_000)
        moment = datetime(2024, 2, 28, 23, 0) + timedelta(seconds=seconds)
        lines.append(f"{moment}.{fraction:07d},{input_tokens},{output_tokens}")
        expected.append((ticks * 100, input_tokens, output_tokens))
    path = write(tmp_path_factory.mktemp("trace"), *lines)

    assert columns(read_azure2023(path)) == expected
