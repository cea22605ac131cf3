"""A partition: the chips of one UltraServer that one engine serves on, and how it divides them.

Attention is replicated over data-parallel ranks of `tp` chips; experts are spread over `ep` chips.
"""

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


def check_partition(partition: Partition, system: SystemSpec, experts: int) -> None:
    """Raises ConfigError when `system` has fewer chips, or `experts` do not spread evenly."""
    available = system.chips.count
    if partition.chips > available:
        raise ConfigError(
            field="chips",
            value=partition.chips,
            expected=f"at most {available}, the chips of {system.name}",
        )
    if experts % partition.ep:
        fitting = [chips for chips in range(1, available + 1) if experts % chips == 0]
        raise ConfigError(
            field="ep",
            value=partition.ep,
            expected=f"a divisor of the model's {experts} experts: "
            f"{', '.join(map(str, fitting))} would fit",
        )
