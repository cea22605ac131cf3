"""neuron-monitor's configuration file."""

import json
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.telemetry.neuron_tools.monitor_config import (
    RUNTIME_GROUPS,
    SYSTEM_GROUPS,
    everything,
    parse_period,
    read_config,
)

# AWS Neuron SDK docs, neuron-monitor-user-guide.rst: the example.
VENDOR = """
   {
     "period": "1s",
     "neuron_runtimes": [
       {
         "tag_filter": ".*",
         "metrics": [
           {"type": "neuroncore_counters"},
           {"type": "memory_used"},
           {"type": "neuron_runtime_vcpu_usage"},
           {"type": "execution_stats"}
         ]
       }
     ],
     "system_metrics": [
       {"type": "vcpu_usage"},
       {"type": "memory_info"},
       {"period": "2s", "type": "neuron_hw_counters"}
     ]
   }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "monitor.conf"
    path.write_text(text)
    return path


def test_the_vendor_s_example_is_read_as_it_is_explained(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, VENDOR))

    (runtime,) = config.runtimes
    assert runtime.groups == dict.fromkeys(RUNTIME_GROUPS, 1.0)
    assert config.system == {
        "vcpu_usage": 1.0,
        "memory_info": 1.0,
        "neuron_hw_counters": 2.0,
    }


def test_without_a_file_everything_is_asked_for_each_five_seconds() -> None:
    config = everything()

    assert config.runtime_groups("any") == dict.fromkeys(RUNTIME_GROUPS, 5.0)
    assert config.system == dict.fromkeys(SYSTEM_GROUPS, 5.0)


def test_the_innermost_period_holds_and_five_seconds_without_any(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "neuron_runtimes": [
                {
                    "period": "30s",
                    "metrics": [
                        {"type": "memory_used"},
                        {"type": "execution_stats", "period": "500ms"},
                    ],
                }
            ],
            "system_metrics": [{"type": "memory_info"}],
        }
    )
    config = read_config(written(tmp_path, text))

    assert config.runtime_groups("x") == {"memory_used": 30.0, "execution_stats": 0.5}
    assert config.system == {"memory_info": 5.0}


def test_an_application_is_looked_at_by_the_first_entry_that_matches(tmp_path: Path) -> None:
    entries = [
        {"tag_filter": "^day", "metrics": [{"type": "memory_used"}]},
        {"tag_filter": "day|night", "metrics": [{"type": "execution_stats"}]},
    ]
    config = read_config(written(tmp_path, json.dumps({"neuron_runtimes": entries})))

    assert config.runtime_groups("day_1") == {"memory_used": 5.0}
    assert config.runtime_groups("a night") == {"execution_stats": 5.0}
    assert config.runtime_groups("noon") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("0.5s", 0.5), ("250ms", 0.25), ("2m", 120.0), ("24h", 86400)],
)
def test_a_period_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_period(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "s", "-1s", "99ms", "25h", "1e3s", "5 s s", "nan s", ""])
def test_another_period_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_period(text)
    assert str(raised.value) == f"period={text}: expected a time from 100ms to 24h, such as 5s"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ([], "Expected `object`, got `array`"),
        ({"perid": "1s"}, "unknown field `perid`"),
        ({"period": 1}, "Expected `str | null`, got `int`"),
        ({}, "expected at least one metric group"),
        ({"period": "x"}, "period=x: expected a time"),
        ({"system_metrics": [{"type": "memory_used"}]}, r"system_metrics[0].type=memory_used"),
        (
            {"system_metrics": [{"type": "memory_info"}, {"type": "memory_info"}]},
            "system_metrics[1].type=memory_info",
        ),
        (
            {"system_metrics": [{"type": "memory_info", "period": "0s"}]},
            "system_metrics[0].period=0s",
        ),
        (
            {"neuron_runtimes": [{"tag_filter": "(", "metrics": [{"type": "memory_used"}]}]},
            "neuron_runtimes[0].tag_filter=(",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line(tmp_path: Path, content: Any, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(written(tmp_path, json.dumps(content)))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_or_no_json_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a file to read"):
        read_config(tmp_path / "none")
    with pytest.raises(ConfigError, match="JSON: Input data was truncated"):
        read_config(written(tmp_path, "{"))
