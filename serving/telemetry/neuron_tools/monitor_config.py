"""neuron-monitor's configuration file: groups of metrics, each with a period.

A period stands at the root, at an application's entry, at a group, or nowhere (5 s); the innermost
holds. The first entry whose filter matches an application's tag applies.

Source: AWS Neuron SDK docs, neuron-monitor-user-guide.rst.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from emulator.errors import ConfigError

PERIOD_S: Final = 5.0
"""neuron-monitor's default."""

RUNTIME_GROUPS: Final = (
    "neuroncore_counters",
    "execution_stats",
    "memory_used",
    "neuron_runtime_vcpu_usage",
)
SYSTEM_GROUPS: Final = ("neuron_hw_counters", "vcpu_usage", "memory_info")

_PERIOD_S_MIN: Final = 0.1
_PERIOD_S_MAX: Final = 86_400.0
_FILE_BYTES_MAX: Final = 1_000_000
_UNIT_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PERIOD: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")

MetricGroups = dict[str, float]
"""Metric group names, with the wall seconds between updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEntry:
    """Groups for applications whose tag `tag_filter` matches somewhere."""

    tag_filter: str
    groups: MetricGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """All requested groups."""

    runtimes: tuple[RuntimeEntry, ...]
    system: MetricGroups

    def runtime_groups(self, tag: str) -> MetricGroups | None:
        """Groups of the first entry that matches `tag`; None without one."""
        for entry in self.runtimes:
            if re.search(entry.tag_filter, tag):
                return entry.groups
        return None


def everything(period_s: float = PERIOD_S) -> MonitorConfig:
    """All groups of every application, the default without a file."""
    groups = dict.fromkeys(RUNTIME_GROUPS, period_s)
    return MonitorConfig(
        runtimes=(RuntimeEntry(tag_filter=".*", groups=groups),),
        system=dict.fromkeys(SYSTEM_GROUPS, period_s),
    )


def parse_period(text: str, *, field: str = "period") -> float:
    """Wall seconds of "5s", "500ms", "1m"; raises ConfigError."""
    found = _PERIOD.fullmatch(text.strip())
    seconds = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if not _PERIOD_S_MIN <= seconds <= _PERIOD_S_MAX:
        raise ConfigError(field, text, "a time from 100ms to 24h, such as 5s")
    return seconds


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    period: str | None = None


class _Runtime(msgspec.Struct, forbid_unknown_fields=True):
    tag_filter: str = ".*"
    period: str | None = None
    metrics: list[_Group] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    period: str | None = None
    neuron_runtimes: list[_Runtime] = []
    system_metrics: list[_Group] = []


def read_config(path: Path) -> MonitorConfig:
    """Parse the file; raises ConfigError, which names the file and the error."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("config-file", path, f"a file to read ({error.strerror})") from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError("config-file", path, f"at most {_FILE_BYTES_MAX:,} bytes")
    try:
        file_ = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise ConfigError("config-file", path, f"neuron-monitor's JSON: {error}") from error
    root_s = PERIOD_S if file_.period is None else parse_period(file_.period)
    config = MonitorConfig(
        runtimes=tuple(
            _runtime(entry, root_s, number) for number, entry in enumerate(file_.neuron_runtimes)
        ),
        system=_groups(file_.system_metrics, root_s, SYSTEM_GROUPS, "system_metrics"),
    )
    if not config.system and not any(entry.groups for entry in config.runtimes):
        raise ConfigError("config-file", path, "at least one metric group")
    return config


def _runtime(entry: _Runtime, root_s: float, number: int) -> RuntimeEntry:
    where = f"neuron_runtimes[{number}]"
    try:
        re.compile(entry.tag_filter)
    except re.error as error:
        field = f"{where}.tag_filter"
        raise ConfigError(field, entry.tag_filter, f"a regular expression ({error})") from error
    own_s = root_s if entry.period is None else parse_period(entry.period, field=f"{where}.period")
    groups = _groups(entry.metrics, own_s, RUNTIME_GROUPS, f"{where}.metrics")
    return RuntimeEntry(tag_filter=entry.tag_filter, groups=groups)


def _groups(
    wanted: list[_Group], period_s: float, known: tuple[str, ...], where: str
) -> MetricGroups:
    groups: MetricGroups = {}
    for number, group in enumerate(wanted):
        field = f"{where}[{number}]"
        if group.type not in known or group.type in groups:
            raise ConfigError(f"{field}.type", group.type, f"one of {', '.join(known)}, each once")
        groups[group.type] = (
            period_s
            if group.period is None
            else parse_period(group.period, field=f"{field}.period")
        )
    return groups
