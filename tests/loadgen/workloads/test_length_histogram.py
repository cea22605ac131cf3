from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import FileError
from loadgen.workloads.length_histogram import LengthHistogram, read_histogram


def written(folder: Path, text: str) -> Path:
    path = folder / "lengths.csv"
    path.write_bytes(text.encode())
    return path


def test_each_bin_has_its_share_and_a_range_is_shared_alike(tmp_path: Path) -> None:
    histogram = read_histogram(written(tmp_path, "tokens,weight\r\n100,1\r\n200-203,2\r\n7,1\r\n"))

    # a quarter of [0, 1) is 100, half is 200 to 203, an eighth each, the last quarter is 7
    uniforms = np.array([0.0, 0.24, 0.25, 0.37, 0.38, 0.51, 0.63, 0.74, 0.75, 1 - 2**-53])
    expected = [100, 100, 200, 200, 201, 202, 203, 203, 7, 7]
    assert histogram.at(uniforms).tolist() == expected


def test_a_length_of_weight_0_is_never_drawn(tmp_path: Path) -> None:
    histogram = read_histogram(written(tmp_path, "1,0\n2,0.5\n3,0\n4,0.5\n5,0"))

    ends = np.array([0.0, 0.5 - 2**-54, 0.5, 1 - 2**-53])
    assert histogram.at(ends).tolist() == [2, 2, 4, 4]


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    numerator=st.integers(0, 9_999),
)
def test_a_length_is_the_first_whose_heap_of_weights_reaches_past_the_share(
    weights: list[int], numerator: int
) -> None:
    lengths = tuple(range(10, 10 + len(weights)))
    histogram = LengthHistogram(
        words="", least=lengths, most=lengths, weights=tuple(map(float, weights))
    )
    share = (numerator + 0.5) / 10_000  # never on a bin's end
    heap, expected = 0.0, -1
    for length, weight in zip(lengths, weights, strict=True):
        heap += weight / sum(weights)
        if share < heap:
            expected = length
            break

    assert histogram.at(np.array([share])).tolist() == [expected]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("", "expected 2 fields, found an empty line"),
        ("5", "expected 2 fields, found 1"),
        ("5,1,2", "expected 2 fields, found 3"),
        ("0,1", "the length 0 is not in 1 to"),
        ("1.5,1", "the length '1.5' is not a whole number"),
        ("-5,1", "the length '-5' is neither a whole number nor FROM-TO"),
        ("5-,1", "the length '5-' is neither a whole number nor FROM-TO"),
        ("1-2-3,1", "the length '1-2-3' is not a whole number"),
        ("9-5,1", "the lengths 9-5 go down"),
        ("5,much", "the weight 'much' is not a number from 0 on"),
        ("5,-1", "the weight '-1' is not a number from 0 on"),
        ("5,nan", "the weight 'nan' is not a number from 0 on"),
        ("5,inf", "the weight 'inf' is not a number from 0 on"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    path = written(tmp_path, f"length,weight\n5,1\n{row}\n6,1\n")

    with pytest.raises(FileError) as refused:
        read_histogram(path)

    assert str(refused.value).startswith(f"{path}:3: {reason}")


@pytest.mark.parametrize("text", ["", "length,weight\n", "5,0\n6,0\n"])
def test_a_file_without_any_weight_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match="has no length with a weight above 0"):
        read_histogram(written(tmp_path, text))


@pytest.mark.parametrize(
    ("least", "weights"),
    [((1, 2), (1.0,)), ((1, 2), (0.0, 0.0)), ((1, 2), (3.0, -1.0)), ((1, 2), (1.0, np.inf))],
)
def test_bins_without_a_weight_each_cannot_be_made(
    least: tuple[int, ...], weights: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match="weight"):
        LengthHistogram(words="", least=least, most=least, weights=weights)
