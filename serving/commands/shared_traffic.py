"""Times of a collective and other traffic on the same links at once, class by class.

The collective is an all-to-all, as in dispatch and combine; of other traffic each chip sends its
bytes to the chip half the group further on. All starts at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.fabric.shared_links import SharedLinks
from emulator.fabric.traffic_classes import TrafficClass, traffic_classes
from emulator.specs.system import SystemSpec
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.collective_claims import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLine:
    """One transfer beside an all-to-all of `all_to_all_bytes` a rank: alone, and together."""

    system: str
    traffic: str
    all_to_all_bytes: int
    bytes_per_chip: int
    classes: int
    alone_ns: float
    together_ns: float


def traffic_name(traffic: TrafficClass) -> str:
    """The name on the command line: "kv-transfer"."""
    return traffic.name.lower().replace("_", "-")


def shared_lines(
    system: SystemSpec,
    sizes: list[int],
    beside: Mapping[TrafficClass, int],
    *,
    chips: int,
    ranks_per_chip: int,
) -> Iterator[SharedLine]:
    """Lines for each all-to-all of `sizes`, then each class of `beside`, bytes a chip.

    Raises ConfigError for fewer than two chips: they have no links.
    """
    if chips < 2:
        raise ConfigError("chips", chips, "2 or more, to have links between")
    links = SharedLinks(system, np.arange(chips))
    classes = traffic_classes(system.chip)
    onward = np.roll(np.eye(chips), chips // 2, axis=1)  # [chips, chips]: half the group further on
    others = [links.transfer(traffic, size * onward) for traffic, size in beside.items()]
    for size in sizes:
        exchange = np.full((chips, chips), size * ranks_per_chip / chips)
        np.fill_diagonal(exchange, 0.0)
        transfers = [links.transfer(TrafficClass.COLLECTIVE, exchange), *others]
        together = links.completion_ns(transfers)
        rows = [(TrafficClass.COLLECTIVE, size * ranks_per_chip), *beside.items()]
        for (traffic, bytes_per_chip), transfer, done_ns in zip(
            rows, transfers, together, strict=True
        ):
            yield SharedLine(
                system=system.name,
                traffic=traffic_name(traffic),
                all_to_all_bytes=size,
                bytes_per_chip=bytes_per_chip,
                classes=classes,
                alone_ns=float(links.completion_ns([transfer])[0]),
                together_ns=float(done_ns),
            )


def shared_text(lines: list[SharedLine]) -> Iterator[str]:
    """A title and a table per system: each transfer alone, and together."""
    for system in dict.fromkeys(line.system for line in lines):
        own = [line for line in lines if line.system == system]
        classes = own[0].classes
        order = f"{classes} classes, each before the next" if classes > 1 else "shared fairly"
        yield f"{system}, all-to-all and other traffic at once: {order}"
        yield from table_lines(table_of(_COLUMNS, own))


_COLUMNS: Final[tuple[Column[SharedLine], ...]] = (
    Column("all-to-all", lambda line: size_text(line.all_to_all_bytes)),
    Column("traffic", lambda line: line.traffic, align="left"),
    Column("a chip", lambda line: size_text(line.bytes_per_chip)),
    Column("us alone", lambda line: line.alone_ns / 1e3, ",.1f"),
    Column("us together", lambda line: line.together_ns / 1e3, ",.1f"),
)
