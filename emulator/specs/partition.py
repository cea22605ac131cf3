"""A partition: the chips of one UltraServer that serve an engine, and their division.

Data-parallel ranks of `tp` chips split attention's heads and KV cache; groups of `ep` chips hold
all experts. Inside a chip both are split over its logical cores, by `lnc`; decoding requests by
heads, batch or sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.system import SystemSpec

LNC_MAX: Final = 8
"""NeuronCores of the largest logical one (announced for Trainium3)."""


def shown_lnc(lnc: int) -> int | None:
    """The LNC of NeuronCores; None of a GPU, all of whose multiprocessors are one logical core."""
    return lnc if lnc <= LNC_MAX else None


def divisors(count: int) -> list[int]:
    """Of so many chips, from 1 on."""
    return [size for size in range(1, count + 1) if count % size == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`chips` chips from `first_chip` on, in ranks of `tp` and expert-parallel groups of `ep`.

    Rank r has chips [r * tp, (r + 1) * tp) of the partition; likewise expert group g with ep.
    `spares` more chips stand by. If `expert_tp` chips divide each expert's columns, a group has ep
    x expert_tp chips; serving chips have 1. Raises ConfigError, with the rule and fitting values.
    """

    chips: int
    tp: int = 1
    ep: int
    expert_tp: int = 1
    lnc: int = 2
    first_chip: int = 0
    spares: int = 0
    attention_split: AttentionSplit = AttentionSplit.HEADS

    def __post_init__(self) -> None:
        if self.chips < 1:
            raise ConfigError("chips", self.chips, "at least 1")
        for name, least in (("expert_tp", 1), ("first_chip", 0), ("spares", 0)):
            if getattr(self, name) < least:
                raise ConfigError(name, getattr(self, name), f"at least {least}")
        sizes = divisors(self.chips)
        for name, what in (
            ("tp", "chips = tp x dp, so tp divides"),
            ("ep", "experts lie on whole groups of ep chips, so ep divides"),
            ("expert_group", "experts lie on whole groups of ep x expert_tp chips, which divides"),
        ):
            value = getattr(self, name)
            if value not in sizes:
                fitting = ", ".join(map(str, sizes))
                raise ConfigError(
                    name, value, f"{what} the {self.chips} chips: {fitting} would fit"
                )

    @property
    def expert_group(self) -> int:
        """Chips that together hold all experts once."""
        return self.ep * self.expert_tp

    @property
    def ranks(self) -> int:
        """Data-parallel attention replicas."""
        return self.chips // self.tp

    @property
    def logical_core(self) -> int | None:
        """As `shown_lnc`."""
        return shown_lnc(self.lnc)

    @property
    def division(self) -> str:
        """How its chips divide a model: "tp 1, ep 144, lnc 2, attention by batch"."""
        by_heads = self.attention_split is AttentionSplit.HEADS
        split = "" if by_heads else f", attention by {self.attention_split}"
        cores = "" if self.logical_core is None else f", lnc {self.logical_core}"
        return f"tp {self.tp}, ep {self.ep}{cores}{split}"

    def rank_of_chip(self, chip: int) -> int:
        """The rank of a chip of the partition."""
        return chip // self.tp

    def chips_of_rank(self, rank: int) -> range:
        """The partition's chips of a rank, its first one leading."""
        return range(rank * self.tp, (rank + 1) * self.tp)


def check_partition(
    partition: Partition, system: SystemSpec, heads_by_model: Mapping[str, tuple[int, int]]
) -> None:
    """Check the rules between a partition, a machine and its models.

    `heads_by_model`: each model's query heads, and its head groups that stay together on a chip.
    Raises ConfigError for too many chips, an LNC that the chip lacks, or heads that do not divide
    over a rank's chips.
    """
    available = system.chips.count
    wanted = partition.first_chip + partition.chips + partition.spares
    if wanted > available:
        raise ConfigError(
            "chips",
            partition.chips,
            f"at most {available - partition.first_chip - partition.spares}, of the "
            f"{available} chips of {system.name} from chip {partition.first_chip} on"
            + (f" with {partition.spares} spares" if partition.spares else ""),
        )
    system.chip.logical_cores(partition.lnc)
    for name, (heads, groups) in heads_by_model.items():
        fitting = [size for size in divisors(partition.chips) if groups % size == 0]
        if partition.tp not in fitting:
            raise ConfigError(
                "tp",
                partition.tp,
                f"a divisor of the {groups} head groups ({heads} heads) of {name}: "
                f"{', '.join(map(str, fitting))} would fit on {partition.chips} chips",
            )
