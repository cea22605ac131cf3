from collections.abc import Mapping
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.analysis.validate.measured_row import (
    ExcludedRow,
    MeasuredRow,
    read_rows,
    required_columns,
)
from serving.analysis.validate.usable_rows import usable_rows
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows


def test_a_row_is_read_as_it_stands(tmp_path: Path) -> None:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [{"conc": "32", "isl": "8192"}]))

    assert (row.line, row.users, row.usable) == (2, 32, True)
    assert row.configuration.hardware == "h200"
    assert row.configuration.workload == "8192/1024"
    assert not row.configuration.speculative
    assert row.results.tpot_s == 0.016
    assert row.results.tokens_per_s_per_chip == 240


def test_a_configuration_is_everything_but_the_users(tmp_path: Path) -> None:
    changes: list[Mapping[str, str]] = [
        {},
        {"conc": "64", "mean_tpot": "0.1"},
        {"date": "2026-05-02"},
        {"decode_ep": "8"},
        {"spec_method": "mtp"},
    ]
    rows = read_rows(write_rows(tmp_path / "rows.csv", changes))

    first, same, *others = [row.configuration.fingerprint for row in rows]
    assert first == same
    assert len({first, *others}) == 4


def test_a_layout_says_workers_chips_and_how_experts_and_attention_are_divided(
    tmp_path: Path,
) -> None:
    rows = read_rows(write_rows(tmp_path / "rows.csv", [{}, {"decode_ep": "8"}, DISAGGREGATED]))

    assert [row.configuration.layout for row in rows] == ["8", "8 ep8", "1x8 + 2x8 ep8 dp"]


def test_one_pool_may_leave_out_what_it_does_not_need(tmp_path: Path) -> None:
    prompts = dict.fromkeys(required_columns()[6:11], "")  # the columns of a pool for prompts
    rows = [
        {},
        {**prompts, "date": ""},
        {**prompts, "num_prefill_gpu": "0", "prefill_num_workers": "0"},
        {"num_decode_gpu": "", "decode_num_workers": ""},
    ]
    assert next(iter(prompts)) == "num_prefill_gpu"

    found, excluded = usable_rows(read_rows(write_rows(tmp_path / "rows.csv", rows)))

    assert not excluded
    assert len({row.load.deployment.decode for row in found}) == 1
    assert found[1].measured.configuration.day is None


def test_two_pools_have_to_say_what_each_is(tmp_path: Path) -> None:
    rows = [{**DISAGGREGATED, "num_decode_gpu": ""}, {**DISAGGREGATED, "prefill_num_workers": ""}]

    reasons = [row.reason for row in read_rows(write_rows(tmp_path / "rows.csv", rows))]

    assert reasons == [
        "num_decode_gpu=nothing: expected a whole number of at least 0",
        "prefill_num_workers=nothing: expected a whole number of at least 0",
    ]


def test_an_empty_result_is_none_and_an_empty_line_is_no_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", [{"median_ttft": ""}])
    path.write_text(path.read_text() + "\n\n")

    (row,) = read_rows(path)

    assert row.results.ttft_s is None


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("conc", "many", "a number"),
        ("conc", "0", "a whole number of at least 1"),
        ("isl", "10.5", "a whole number of at least 1"),
        ("disagg", "perhaps", "True or False"),
        ("date", "May", "a date, YYYY-MM-DD"),
        ("spec_method", "eagle", "none or mtp"),
        ("hardware", "", "a word"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_line_column_and_value_and_spoils_no_other(
    column: str, value: str, expected: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "rows.csv", [{}, {column: value}, {}])

    first, unread, last = read_rows(path)

    assert isinstance(unread, ExcludedRow)
    assert (unread.line, unread.reason) == (
        3,
        f"{column}={value or 'nothing'}: expected {expected}",
    )
    assert isinstance(first, MeasuredRow)
    assert isinstance(last, MeasuredRow)
    _, excluded = usable_rows([unread])
    assert [(each.line, each.reason) for each in excluded] == [(3, unread.reason)]


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "abc", ""])
def test_a_result_that_cannot_be_read_counts_as_empty(value: str, tmp_path: Path) -> None:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [{"mean_tpot": value}]))

    assert isinstance(row, MeasuredRow)
    assert row.results.tpot_s is None


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", [{}])
    path.write_text(path.read_text().replace("decode_tp", "decode_width"))

    with pytest.raises(ConfigError, match="without decode_tp: expected these columns"):
        read_rows(path)


@pytest.mark.parametrize("text", ["", "hardware,framework\n"])
def test_a_file_without_the_columns_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)

    with pytest.raises(ConfigError, match="header"):
        read_rows(path)


def test_a_file_without_rows_or_without_being_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one row"):
        read_rows(write_rows(tmp_path / "rows.csv", []))
    with pytest.raises(ConfigError, match="a file that can be read"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match="CSV text"):
        read_rows(tmp_path / "binary.csv")


def test_no_rate_and_no_count_of_gpus_that_follows_from_one_is_asked_for() -> None:
    assert not {"n_gpu_effective", "littles_law_ratio", "median_intvty"} & set(required_columns())
