"""Recorded traffic from files: both formats, and rows that are refused."""

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving.traffic.trace_file import MalformedTrace, read_trace

from loadgen.workloads.azure2023 import read_azure2023
from loadgen.workloads.sample_trace import BUNDLED_TRACE

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
FIRST = "2023-11-16 18:15:46.6805900,374,44"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


def mooncake(**changed: object) -> str:
    row = {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
    return json.dumps({key: value for key, value in (row | changed).items() if value is not None})


def test_azure_rows_arrive_at_differences_of_their_timestamps(tmp_path: Path) -> None:
    rows = f"{HEADER}\n{FIRST}\n2023-11-16 18:15:50.9951690,396,109\n"
    for text in (rows, rows.replace("\n", "\r\n"), "\ufeff" + rows.removesuffix("\n")):
        trace = read_trace(written(tmp_path, text))

        assert trace.arrival_s.tolist() == [0.0, 4.314_579]
        assert trace.prompt_tokens.tolist() == [374, 396]
        assert trace.output_tokens.tolist() == [44, 109]


def test_mooncake_timestamps_are_milliseconds(tmp_path: Path) -> None:
    rows = [mooncake(timestamp=3_000), mooncake(timestamp=4_500, hash_ids=None, input_length=7)]
    trace = read_trace(written(tmp_path, "\n".join(rows) + "\n"))

    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.prompt_tokens.tolist() == [6758, 7]
    assert trace.output_tokens.tolist() == [500, 500]


def test_the_load_generator_reads_the_same_of_the_sample_trace() -> None:
    ours, theirs = read_trace(BUNDLED_TRACE), read_azure2023(BUNDLED_TRACE)

    assert len(ours) == len(theirs)
    assert ours.arrival_s == pytest.approx(theirs.arrivals_ns / 1e9)
    assert ours.prompt_tokens.tolist() == theirs.input_tokens.tolist()
    assert ours.output_tokens.tolist() == theirs.output_tokens.tolist()


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ("", None, "expected 3 fields, found an empty line"),
        ("2023-11-16 18:15:46,1", None, "expected 3 fields, found 2"),
        ("yesterday,1,1", "TIMESTAMP", "'yesterday' is not like"),
        ("2023-02-30 18:15:47,1,1", "TIMESTAMP", "is not a time that exists"),
        ("2023-11-16 18:15:47,1.5,1", "ContextTokens", "'1.5' is not a whole number"),
        ("2023-11-16 18:15:47,-3,1", "ContextTokens", "'-3' is not a whole number"),
        ("2023-11-16 18:15:47,1,0", "GeneratedTokens", "0 is not in 1 to 10,000,000"),
        ("2023-11-16 18:15:47,1," + "9" * 5_000, "GeneratedTokens", "is not in 1 to"),
        ("2023-11-16 18:15:46.6805899,1,1", "timestamp", "is before that of the row above"),
    ],
)
def test_a_malformed_azure_row_is_refused_by_its_line_and_field(
    tmp_path: Path, row: str, field: str | None, reason: str
) -> None:
    path = written(tmp_path, f"{HEADER}\n{FIRST}\n{row}\n{FIRST}\n")
    with pytest.raises(MalformedTrace) as refused:
        read_trace(path)

    assert (refused.value.line, refused.value.field) == (3, field)
    assert reason in refused.value.reason
    assert str(refused.value).startswith(f"{path}:3: {field or ''}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ("{", None, "is not a JSON object"),
        ("[1]", None, "is not a JSON object"),
        ("", None, "is not a JSON object"),
        (mooncake(timestamp=None), "timestamp", "is missing"),
        (mooncake(timestamp=1.5), "timestamp", "'1.5' is not a whole number"),
        (mooncake(timestamp=True), "timestamp", "'True' is not a whole number"),
        (mooncake(timestamp=-1), "timestamp", "-1 is not in 0 to"),
        (mooncake(timestamp=10**30), "timestamp", "is not in 0 to"),
        (mooncake(input_length="7"), "input_length", "'7' is not a whole number"),
        (mooncake(output_length=0), "output_length", "0 is not in 1 to 10,000,000"),
        (mooncake(hash_ids=[0, "a"]), "hash_ids", "is not a list of whole numbers"),
        (mooncake(model="x"), "'model'", "is not one of the fields"),
    ],
)
def test_a_malformed_mooncake_row_is_refused_by_its_line_and_field(
    tmp_path: Path, row: str, field: str | None, reason: str
) -> None:
    path = written(tmp_path, f"{mooncake()}\n{row}\n{mooncake()}\n")
    with pytest.raises(MalformedTrace) as refused:
        read_trace(path)

    assert (refused.value.line, refused.value.field) == (2, field)
    assert reason in refused.value.reason


def test_a_mooncake_row_from_before_the_one_above_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"{mooncake(timestamp=5)}\n{mooncake(timestamp=4)}\n")
    with pytest.raises(MalformedTrace, match=":2: timestamp is before that of the row above"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"a,b,c\n1,2,3\n", "expected the header"),
        (HEADER.encode(), "has a header and no row"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(MalformedTrace, match=reason):
        read_trace(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MalformedTrace, match="nowhere: No such file"):
        read_trace(tmp_path / "nowhere")


@pytest.mark.long
@settings(max_examples=200)
@given(text=st.text(max_size=60), is_json=st.booleans())
def test_whatever_a_row_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, is_json: bool
) -> None:
    first = mooncake() if is_json else f"{HEADER}\n{FIRST}"
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(f"{first}\n{text}\n".encode("utf-8", "surrogatepass"))
    with suppress(MalformedTrace):
        assert 1 <= len(read_trace(path)) <= 2 + text.count("\n")


@pytest.mark.parametrize("name", ["trace.csv.gz", "trace"])
def test_a_compressed_file_is_the_same_trace(name: str, tmp_path: Path) -> None:
    text = f"{HEADER}\n{FIRST}\n2023-11-16 18:15:50.9951690,396,109\n"
    plain = read_trace(written(tmp_path, text))
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()))

    packed = read_trace(path)
    assert packed.arrival_s.tolist() == plain.arrival_s.tolist()
    assert packed.prompt_tokens.tolist() == plain.prompt_tokens.tolist()


def test_a_compressed_file_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(f"{HEADER}\n{FIRST}\n".encode())[:-9])

    with pytest.raises(MalformedTrace, match="its gzip data is damaged or not whole"):
        read_trace(path)
