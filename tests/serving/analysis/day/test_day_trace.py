"""Demand over days: rates between knots, and the files that they come from."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError, UltraServeError
from loadgen.errors import FileError, LoadError
from loadgen.workloads.rate_file import RateColumns
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_trace_file import day_trace

BEGINS = datetime(2024, 5, 10, tzinfo=UTC)


def hourly(*requests: float) -> DayTrace:
    return DayTrace.hourly(np.array(requests), source="test", begins=BEGINS)


def test_hours_are_joined_by_straight_lines_between_their_middles() -> None:
    trace = hourly(3_600, 7_200, 3_600)

    assert trace.length_s == 3 * 3_600
    at = np.array([0.0, 1_800.0, 3_600.0, 5_400.0, 10_800.0])
    assert trace.rates_at(at).tolist() == [1.0, 1.0, 1.5, 2.0, 1.0]
    assert trace.peak_per_s == 2.0


def test_a_trace_that_repeats_leads_from_its_end_to_its_begin() -> None:
    at = np.array([0.0, 900.0, 1_800.0, 5_400.0, 10_800.0])
    found = hourly(3_600, 7_200, 10_800).rates_at(at, repeats=True)
    assert found.tolist() == [2.0, 1.5, 1.0, 2.0, 2.0]
    steps = DayTrace.stepwise(((0, 1, 4.0), (1, 24, 8.0)), source="test", begins=BEGINS)
    ends = np.array([1.0, 3_599.0, 3_601.0, 86_399.0])
    assert steps.rates_at(ends, repeats=True).tolist() == [4.0, 4.0, 8.0, 8.0]


def test_steps_jump_where_they_were_recorded_to_jump() -> None:
    trace = DayTrace.stepwise(((0, 1, 4.0), (1, 24, 8.0)), source="test", begins=BEGINS)

    assert trace.rates_at(np.array([3_599.0, 3_601.0])).tolist() == [4.0, 8.0]
    with pytest.raises(ConfigError, match="follow each other"):
        DayTrace.stepwise(((0, 1, 4.0), (2, 24, 8.0)), source="test", begins=BEGINS)


@given(
    requests=st.lists(st.floats(1, 1e6), min_size=1, max_size=50),
    peak_per_s=st.floats(0.1, 1e5),
)
def test_scaling_sets_the_highest_rate_and_keeps_the_shape(
    requests: list[float], peak_per_s: float
) -> None:
    trace = hourly(*requests)
    scaled = trace.scaled(peak_per_s)

    assert scaled.peak_per_s == pytest.approx(peak_per_s)
    at = np.linspace(0, trace.length_s, 13)
    shape = trace.rates_at(at) / trace.peak_per_s
    assert scaled.rates_at(at) / peak_per_s == pytest.approx(shape)


def test_the_built_in_day_of_an_operator_leaves_18_percent_of_its_nodes_free() -> None:
    trace = day_trace("deepseek")
    minutes = np.arange(30.0, trace.length_s, 60.0)

    assert trace.is_schedule
    free = 1 - trace.rates_at(minutes).mean() / trace.peak_per_s
    assert free == pytest.approx(1 - 226.75 / 278, abs=1e-3)  # both figures are the operator's own


def test_the_busiest_day_is_the_one_with_the_highest_hour() -> None:
    assert hourly(*[1] * 30, 9, *[1] * 41).busiest_day() == 1
    assert hourly(1, 2).busiest_day() == 0


def test_an_hourly_file_is_read_and_missing_hours_are_named(tmp_path: Path) -> None:
    path = tmp_path / "hours.csv"
    head = "hour_index,utc_hour_start,requests_est,rps_est\n"
    rows = ["0,2024-05-10T00:00Z,3600,1", "1,2024-05-10T01:00Z,7200,2"]
    path.write_text(head + "\n".join(rows) + "\n")
    trace = day_trace(str(path))
    assert trace.begins == BEGINS
    assert trace.peak_per_s == 2.0

    path.write_text(head + "\n".join(rows) + "\n9,2024-05-10T09:00Z,1,1\n")
    with pytest.raises(FileError, match=r"hours.csv:4: .* missing"):
        day_trace(str(path))


def test_rates_of_any_file_are_linear_between_the_middles_of_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "rates.txt"
    path.write_text("when;rps\n2024-05-10 00:00;1\n2024-05-10 00:10;3\n2024-05-10 00:20;2\n")

    trace = day_trace(str(path), RateColumns(zone=ZoneInfo("Europe/Berlin")))
    assert trace.length_s == 1_800
    assert trace.rates_at(np.array([0.0, 300.0, 600.0, 900.0, 1_800.0])).tolist() == [1, 1, 2, 3, 2]
    assert trace.zone == "Europe/Berlin"
    assert trace.begins == BEGINS - timedelta(hours=2)
    assert trace.source == "rates.txt, rps: 3 steps of 600 s from 2024-05-10 00:00 CEST"


def test_a_count_of_seconds_begins_at_midnight_and_lasts_five_minutes_at_least(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("t,rps\n0,1\n150,3\n")
    trace = day_trace(str(path))
    assert (trace.begins.hour, trace.length_s) == (0, 300)
    assert trace.source.endswith("its begin is taken for midnight")
    path.write_text("t,rps\n0,1\n149,3\n")
    with pytest.raises(ConfigError, match="expected rates over 300 s or more, not 298 s"):
        day_trace(str(path))


def test_rates_that_are_all_zero_are_no_demand(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("t,rps\n0,0\n600,0\n")
    with pytest.raises(ConfigError, match="expected some requests"):
        day_trace(str(path))


def test_columns_make_a_file_of_rates_and_a_built_in_day_has_none(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    rows = (f"2023-11-16 18:{minute}:00.0000000,{minute},1" for minute in range(15, 25))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    assert day_trace(str(path)).traffic is not None
    columns = RateColumns(time="TIMESTAMP", rate="ContextTokens")
    assert day_trace(str(path), columns).peak_per_s == 24
    with pytest.raises(ConfigError, match="trace=sample"):
        day_trace("sample", columns)


def test_a_zone_is_that_of_any_file_and_of_no_built_in_day(tmp_path: Path) -> None:
    berlin = RateColumns(zone=ZoneInfo("Europe/Berlin"))
    requests = tmp_path / "requests.jsonl"
    lines = (
        f'{{"timestamp": {at * 1_000}, "input_length": 7, "output_length": 3}}' for at in range(400)
    )
    requests.write_text("\n".join(lines) + "\n")
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("local_start,local_end,h800_nodes\n00:00,24:00,278\n")
    for path, own in ((requests, "UTC"), (nodes, "Asia/Shanghai")):
        assert day_trace(str(path)).zone == own
        trace = day_trace(str(path), berlin)
        assert (trace.zone, trace.begins.hour) == ("Europe/Berlin", 0)
    with pytest.raises(ConfigError, match="timezone=Europe/Berlin: expected none beside"):
        day_trace("sample", berlin)


def test_clients_are_drawn_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,2,1,Gamma,1,1\n600,1,1,Gamma,1,1\n")
    lengths = '{"0": {"input_tokens": "{7: 1.0}", "output_tokens": "{3: 1.0}"}}'
    (tmp_path / "chunk-0-dataset.json").write_text(lengths)
    first, again, other = (day_trace(str(tmp_path), seed=seed) for seed in (1, 1, 2))
    assert first.traffic is not None
    assert other.traffic is not None
    assert len(first.traffic) == len(other.traffic) == 1_800
    assert first.rates_per_s.tolist() == again.rates_per_s.tolist()
    assert first.traffic.arrival_s.tolist() != other.traffic.arrival_s.tolist()


def test_a_file_of_nodes_by_time_is_read_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("local_start,local_end,h800_nodes\n08:30,24:00,278\n00:00,08:30,68\n")

    trace = day_trace(str(path))
    assert trace.rates_at(np.array([60.0, 9 * 3_600.0])).tolist() == [68.0, 278.0]


def test_recorded_requests_are_counted_and_kept_for_their_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = (
        f'{{"timestamp": {second * 1_000}, "input_length": 7, "output_length": 3}}'
        for second in range(901)
    )
    path.write_text("\n".join(lines) + "\n")

    trace = day_trace(str(path))
    assert trace.length_s == 900
    assert trace.peak_per_s == 1.0
    assert trace.traffic is not None
    assert set(trace.traffic.prompt_tokens.tolist()) == {7}


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere"])
def test_a_file_that_is_not_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises((UltraServeError, LoadError)) as caught:
        day_trace(name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
