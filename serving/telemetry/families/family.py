"""A Prometheus family without its values, and the instruments of those that count."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final, Literal, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from emulator.errors import ConfigError

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["1", "s", "J", "W", "bytes", "bytes/s", "tokens/s/MW", "nats", "wall s"]
"""`1`: a number of things, or a share. Seconds are emulated, except `wall s`."""

_UNITS: Final[Mapping[str, Unit]] = {"seconds": "s", "joules": "J", "watts": "W", "bytes": "bytes"}
"""By the last word of a name."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Family:
    """One family, by default a gauge; name and help by place, as in prometheus_client.

    A counter's `name` has no `_total`, its samples do. `unit` defaults to the one that the name
    ends in, or `1`. `was`: its name in the release before, exported too. Raises ConfigError for an
    invalid name, one that ends in `_total`, and help that is no sentence.
    """

    name: str
    help: str
    _: KW_ONLY
    kind: Kind = "gauge"
    unit: Unit | Literal[""] = ""
    labels: tuple[str, ...] = ()
    was: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.endswith("_total"):
            expected = "lower case letters, digits and underscores, without _total"
            raise ConfigError("name", self.name, expected)
        if not self.help.endswith(".") or "\n" in self.help or '"' in self.help:
            raise ConfigError("help", self.help, "one line that ends in a dot")
        if not self.unit:
            unit = _UNITS.get(self.name.rpartition("_")[2], "1")
            object.__setattr__(self, "unit", unit)

    @property
    def names(self) -> tuple[Self, ...]:
        """Itself, and under its old name, if any."""
        if not self.was:
            return (self,)
        words = f"Deprecated, gone in the next release: the old name of {self.name}."
        return (self, replace(self, name=self.was, was="", help=words))

    @property
    def sample(self) -> str:
        """Name of its samples; a histogram's have endings of their own."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def counter(family: Family, registry: CollectorRegistry) -> Counter:
    """The family's counter, registered."""
    assert family.kind == "counter", family
    return Counter(family.name, family.help, family.labels, registry=registry)


def gauge(family: Family, registry: CollectorRegistry) -> Gauge:
    """The family's gauge, registered."""
    assert family.kind == "gauge", family
    return Gauge(family.name, family.help, family.labels, registry=registry)


def histogram(family: Family, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
    """The family's histogram with these upper bounds, registered."""
    assert family.kind == "histogram", family
    return Histogram(family.name, family.help, family.labels, buckets=buckets, registry=registry)
