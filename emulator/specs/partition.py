"""A partition: the chips of one UltraServer that one engine serves on, and how it divides them.

Attention is replicated over data-parallel ranks of `tp` chips; experts are spread over `ep` chips.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.specs.system import SystemSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`chips` in ranks of `tp`; every chip is a rank of its own and holds its share of experts.

    Raises ConfigError for a count below one, for tp other than 1, and for ep other than chips:
    tensor parallelism over chips and expert groups smaller than the partition are not built.
    """

    chips: int
    tp: int = 1
    ep: int

    def __post_init__(self) -> None:
        if self.chips < 1:
            raise ConfigError(field="chips", value=self.chips, expected="at least 1")
        if self.tp != 1:
            raise ConfigError(field="tp", value=self.tp, expected="1 (one chip per rank)")
        if self.ep != self.chips:
            raise ConfigError(
                field="ep",
                value=self.ep,
                expected=f"the number of chips, {self.chips} (experts spread over all of them)",
            )

    @property
    def ranks(self) -> int:
        """Data-parallel attention replicas."""
        return self.chips // self.tp


def check_partition(
    partition: Partition, system: SystemSpec, experts_by_model: Mapping[str, int]
) -> None:
    """Raises ConfigError when `system` has fewer chips, or some experts do not spread evenly.

    `experts_by_model` names every model that is spread over the partition.
    """
    available = system.chips.count
    if partition.chips > available:
        raise ConfigError(
            field="chips",
            value=partition.chips,
            expected=f"at most {available}, the chips of {system.name}",
        )
    common = math.gcd(*experts_by_model.values())
    if common % partition.ep:
        fitting = [chips for chips in range(1, available + 1) if common % chips == 0]
        whose = " and ".join(
            f"{count} experts ({name})" for name, count in experts_by_model.items()
        )
        raise ConfigError(
            field="chips",
            value=partition.chips,
            expected=f"a divisor of {whose}: {', '.join(map(str, fitting))} would fit",
        )
