from pathlib import Path

import pytest

from loadgen.errors import FileError
from loadgen.workloads.burstgpt import HEADERS, read_burstgpt

GOOD = "5,ChatGPT,472,18,490,Conversation log"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "burst.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_rows_are_read_and_failed_requests_left_out_and_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEADERS[0],
        GOOD,
        "45,ChatGPT,1087,230,1317,Conversation log",
        "45.5,GPT-4,417,0,417,API log",  # failed: no reply
        "50,GPT-4,0,0,0,API log",
        "118.25,GPT-4,417,276,693,API log",
    )

    recording = read_burstgpt(path)

    assert recording.arrivals_ns.tolist() == [0, 40_000_000_000, 113_250_000_000]
    assert recording.input_tokens.tolist() == [472, 1087, 417]
    assert recording.output_tokens.tolist() == [18, 230, 276]
    assert recording.notes == (
        "of burst.csv 2 rows without a length, which failed when recorded, left out",
    )


def test_the_columns_of_the_second_release_are_found(tmp_path: Path) -> None:
    path = written(tmp_path, HEADERS[1], "5.0,17,3.2,ChatGPT,472,18,490,Conversation log")

    recording = read_burstgpt(path)

    assert (recording.input_tokens.tolist(), recording.output_tokens.tolist()) == ([472], [18])
    assert recording.notes == ()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("", "expected 6 fields, found an empty line"),
        ("6,ChatGPT,1,1,2", "expected 6 fields, found 5"),
        ("soon,ChatGPT,1,1,2,API log", "Timestamp 'soon' is not a number of seconds"),
        ("-6,ChatGPT,1,1,2,API log", "Timestamp '-6' is not a number of seconds"),
        ("6,ChatGPT,x,1,2,API log", "Request tokens 'x' is not a whole number"),
        ("6,ChatGPT,1,1.5,2,API log", "Response tokens '1.5' is not a whole number"),
        ("4.999,ChatGPT,1,1,2,API log", "its timestamp is before that of the row above"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    path = written(tmp_path, HEADERS[0], GOOD, row, GOOD)

    with pytest.raises(FileError) as refused:
        read_burstgpt(path)

    assert str(refused.value).startswith(f"{path}:3: {reason}")


def test_a_file_of_failures_alone_has_no_row(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no row"):
        read_burstgpt(written(tmp_path, HEADERS[0], "5,ChatGPT,0,0,0,API log"))


def test_another_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=":1: expected the header Timestamp,Model"):
        read_burstgpt(written(tmp_path, "time,model", GOOD))
