import json
from pathlib import Path

import pytest

from loadgen.errors import FileError
from loadgen.workloads.mooncake import read_mooncake

ROW = {"timestamp": 0, "input_length": 1_000, "output_length": 500, "hash_ids": [0, 1]}


def row(**changed: object) -> str:
    return json.dumps({key: value for key, value in (ROW | changed).items() if value is not None})


def written(folder: Path, *rows: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_rows_are_read_with_their_blocks_and_milliseconds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row(timestamp=27_000),
        row(timestamp=27_482, input_length=1_024, output_length=3, hash_ids=[0, 46]),
        row(timestamp=30_000, input_length=1_500, hash_ids=[7, 8]),  # without the part of a block
        row(timestamp=30_000, input_length=5_000, hash_ids=None),
    )

    recording = read_mooncake(path)

    assert recording.arrivals_ns.tolist() == [0, 482_000_000, 3_000_000_000, 3_000_000_000]
    assert recording.input_tokens.tolist() == [1_000, 1_024, 1_500, 5_000]
    assert recording.output_tokens.tolist() == [500, 3, 500, 500]
    assert recording.blocks == ((0, 1), (0, 46), (7, 8), ())
    assert recording.block_tokens == 512


def test_a_block_may_hold_a_single_token_and_a_prompt_too(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row(input_length=513, hash_ids=[3, 4]),
        row(input_length=1, hash_ids=[5], output_length=1),
    )

    assert read_mooncake(path).input_tokens.tolist() == [513, 1]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "is not a JSON object"),
        ("{", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        (row(timestamp=None), "timestamp is missing"),
        (row(timestamp=1.5), "timestamp '1.5' is not a whole number"),
        (row(timestamp=True), "timestamp 'True' is not a whole number"),
        (row(timestamp=-1), "timestamp -1 is not in 0 to"),
        (row(timestamp=10**30), "is not in 0 to"),
        (row(input_length="7"), "input_length '7' is not a whole number"),
        (row(input_length=0, hash_ids=[]), "input_length 0 is not in 1 to 10,000,000"),
        (row(input_length=1_024, hash_ids=[0, 1, 2]), "3 hash_ids do not fit input_length 1024"),
        (row(output_length=0), "output_length 0 is not in 1 to 10,000,000"),
        (row(hash_ids=[0, "a"]), "hash_ids is not a list of whole numbers"),
        (row(hash_ids=[0, -1]), "hash_ids is not a list of whole numbers"),
        (row(hash_ids=[0, 1, 2]), "3 hash_ids do not fit input_length 1000 in blocks of 512"),
        (row(input_length=1_500, hash_ids=[0]), "1 hash_ids do not fit input_length 1500"),
        (row(model="x"), "'model' is not one of the fields timestamp"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_reason(
    tmp_path: Path, wrong: str, reason: str
) -> None:
    path = written(tmp_path, row(), wrong, row())

    with pytest.raises(FileError) as refused:
        read_mooncake(path)

    assert str(refused.value).startswith(f"{path}:2: ")
    assert reason in refused.value.reason


def test_a_row_from_before_the_one_above_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=":2: its timestamp is before that of the row above"):
        read_mooncake(written(tmp_path, row(timestamp=5), row(timestamp=4)))
