"""Rates from operators' CSVs: any header, any usual form of time, and one line for the rest."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import FileError, LoadError, OptionError
from loadgen.workloads.rate_file import RateColumns, read_rates
from loadgen.workloads.rate_series import RateSeries

BEGINS = datetime(2024, 5, 10, tzinfo=UTC).timestamp()


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "rates.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(
    folder: Path, text: str | bytes, *, time: str | None = None, rate: str | None = None
) -> RateSeries:
    series, _ = read_rates(written(folder, text), RateColumns(time=time, rate=rate))
    return series


@pytest.mark.parametrize(
    "text",
    [
        "when,rps\n2024-05-10T00:00Z,5\n2024-05-10T01:00Z,7\n",
        "rps,when\n5,2024-05-10 02:00:00+02:00\n7,2024-05-10 03:00:00+02:00\n",
        "when,rps\n2024-05-10 00:00:00,5\n2024-05-10 01:00:00,7\n",
        f"anything,rps\n{BEGINS:.0f},5\n{BEGINS + 3_600:.0f},7\n",
        f"anything,rps\n{BEGINS:.0f}000,5\n{BEGINS + 3_600:.0f}000,7\n",
        "name,when,rps\nserver,2024-05-10T00:00Z,5\nserver,2024-05-10T01:00Z,7\n",
        "\ufeffwhen;rps\r\n2024-05-10T00:00Z;5\r\n2024-05-10T01:00Z;7\r\n",
        "when\trps\n2024-05-10T00:00Z\t5\n2024-05-10T01:00Z\t7\n",
        '"when","rps, all"\n"2024-05-10T00:00Z","5"\n"2024-05-10T01:00Z","7"',
        "\n when , rps \n 2024-05-10T00:00Z , 5 \n\n 2024-05-10T01:00Z , 7 \n\n",
    ],
    ids=[
        *("zone", "offset", "no zone", "seconds", "milliseconds", "text beside"),
        *("BOM, semicolons, CRLF", "tabs", "quotes, no end", "blanks"),
    ],
)
def test_what_leaves_no_choice_is_read_without_columns(tmp_path: Path, text: str) -> None:
    series = read(tmp_path, text)
    assert series.begins_unix_s == BEGINS
    assert series.times_s.tolist() == [0, 3_600]
    assert series.rates.tolist() == [5, 7]
    assert (series.step_s, series.length_s, series.missing) == (3_600, 7_200, 0)


@pytest.mark.parametrize(
    ("name", "unit_s"), [("hour", 3_600), ("Minutes", 60), ("t", 1), ("time", 1)]
)
def test_a_count_from_the_begin_has_the_unit_of_its_name(
    tmp_path: Path, name: str, unit_s: int
) -> None:
    series = read(tmp_path, f"{name},requests\n10,1\n11,2\n12,3\n")
    assert series.begins_unix_s is None
    assert series.times_s.tolist() == [0, unit_s, 2 * unit_s]


def test_columns_are_named_where_there_is_a_choice(tmp_path: Path) -> None:
    text = "start,end,ok,failed\n2024-05-10,2024-05-11,5,0\n2024-05-11,2024-05-12,7,1\n"
    with pytest.raises(FileError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.endswith(
        "rates.csv:1: expected --time-column and --rate-column, of its columns: "
        "start, end, ok, failed"
    )
    assert read(tmp_path, text, time="start", rate="ok").rates.tolist() == [5, 7]
    with pytest.raises(FileError, match="expected --time-column and --rate-column"):
        read(tmp_path, text, time="start")
    with pytest.raises(OptionError, match=r"--rate-column=good: expected one of .* ok, failed"):
        read(tmp_path, text, time="start", rate="good")
    with pytest.raises(OptionError, match="another than the time's"):
        read(tmp_path, text, time="ok", rate="ok")


def test_a_header_of_azure_2024_leaves_no_choice(tmp_path: Path) -> None:
    head = "hour_index,utc_hour_start,requests_est,rps_est"
    rows = ("0,2024-05-10T00:00Z,36,10", "1,2024-05-10T01:00Z,72,20")
    text = "\n".join((head, *rows))
    assert read(tmp_path, text).rates.tolist() == [0.01, 0.02]
    assert read(tmp_path, text, rate="rps_est").rates.tolist() == [10, 20]


def test_times_without_a_zone_are_in_the_one_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "when,rps\n2024-05-10 00:00,5\n2024-05-10 01:00,7\n")
    series, column = read_rates(path, RateColumns(zone=ZoneInfo("Europe/Berlin")))
    assert series.begins_unix_s == BEGINS - 2 * 3_600
    assert column == "rps"


def hourly(*rates: str) -> str:
    rows = (f"2024-05-{10 + n // 24}T{n % 24:02}:00Z,{rate}" for n, rate in enumerate(rates))
    return "when,rps\n" + "\n".join(row for row in rows if not row.endswith(",-")) + "\n"


def test_a_few_missing_steps_are_told_and_many_are_refused(tmp_path: Path) -> None:
    series = read(tmp_path, hourly(*"1234-6789012345-78901234"))
    assert series.missing == 2
    assert series.length_s == 24 * 3_600
    assert series.words == (
        "24 hours, 2 of them missing and taken from straight lines between their neighbours"
    )
    with pytest.raises(FileError) as caught:
        read(tmp_path, hourly(*"1234---89012345-78901234"))
    assert str(caught.value).endswith(
        "rates.csv:6: 4 steps of 3600 s are missing, 3 of them before this one: expected 10% of 24 "
        "at most"
    )


def test_times_may_lie_a_little_beside_their_steps(tmp_path: Path) -> None:
    series = read(tmp_path, "t,rps\n0,1\n59.2,2\n121,3\n180.4,4\n240,5\n")
    assert series.missing == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rates.csv: is empty"),
        ("\n\n", "rates.csv: is empty"),
        ("# Rates\n\nof a day\n", "rates.csv:1: expected a header of two columns or more"),
        ("when,rps\n", "rates.csv:1: has no row below its header"),
        ("2024-05-10T00:00Z,5\n2024-05-10T01:00Z,7\n", "rates.csv:1: expected a header"),
        ("when,rps\n2024-05-10T00:00Z,5\n", "rates.csv:2: expected two times or more"),
        (hourly("1", "nan"), "rates.csv:3: 'nan' is not a number from 0 on"),
        (hourly("nan", "1"), "rates.csv:2: 'nan' is not a number from 0 on"),
        (hourly("1", "", "2"), "rates.csv:3: '' is not a number from 0 on"),
        (hourly("1", "-2"), "rates.csv:3: '-2' is not a number from 0 on"),
        (hourly("1", "inf"), "rates.csv:3: 'inf' is not a number from 0 on"),
        (hourly("1", "1e300"), "rates.csv:3: the rate 1e+300 is not in 0 to 1e+12"),
        (hourly("1", "1e999"), "rates.csv:3: '1e999' is not a number from 0 on"),
        (hourly("1", "many"), "rates.csv:3: 'many' is not a number from 0 on"),
        ("t,rps\n0,1\n60,2\n30,3\n", "rates.csv:4: its time is not after that of the one above"),
        ("t,rps\n0,1\n60,2\n60,3\n", "rates.csv:4: its time is not after that of the one above"),
        ("when,rps\n2024-05-10,1\nlater,2\n", "rates.csv:3: 'later' is not a time like"),
        ("when,rps\n2024-05-10,1\n2024-02-30,2\n", "rates.csv:3: '2024-02-30' is not a time like"),
        ("t,rps\n-60,1\n0,2\n", "rates.csv:2: '-60' is not a number from 0 on"),
        ("t,rps\n1700000000,1\n1700000060000,2\n", "rates.csv:3: 1700000060000 is no Unix time"),
        ("t,rps\n1700000000000000000,1\n1,2\n", "rates.csv:2: 1700000000000000000 is no Unix"),
        ("when,rps\n2024-05-10,1,2\n", "rates.csv:2: expected 2 columns, found 3"),
        ("when;rps\n2024-05-10;1,5\n2024-05-11;2\n", "expected --time-column and --rate-column"),
        ('when,rps\n2024-05-10,"1\n', "rates.csv:2: unexpected end of data"),
        ("when,rps\n2024-05-10,\x001\n", "expected --time-column and --rate-column"),
        ("when,rps\n2024-05-10,1\n".encode("utf-16"), "rates.csv: is not UTF-8 text"),
        (b"when,rps \xe4\n2024-05-10,1\n", "rates.csv: is not UTF-8 text"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(LoadError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(text=st.text(st.sampled_from('when,rps;\t\n"0123456789-+:.eTZ \x00'), max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("rates")
    try:
        series = read(folder, f"t,rps\n{text}")
    except LoadError:
        return
    assert len(series.rates) >= 2
    assert series.length_s > 0
