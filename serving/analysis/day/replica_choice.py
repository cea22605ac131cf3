"""The replica that serves a day: the steady state's best, of one engine or so many to a machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from serving.analysis.day.curve_search import FirstGuess
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.sweep import Sweep

GROUPS_MIN: Final = 12
"""Fewest replicas of a machine, unless its model's smallest replica is too large for that."""
_KV_SPARE_TOKENS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """A candidate in its precision, with the steady state's figures of one replica."""

    candidate: PartitionCandidate
    precision: str
    guess: FirstGuess

    @property
    def chips(self) -> int:
        """Of one replica."""
        return self.candidate.partition.chips


def choose_replica(
    sweep: Sweep, slo: Slo, *, longest_tokens: int, seats: int, group_chips: int | None = None
) -> ReplicaChoice:
    """The replica with the machine's highest rate within the target, of those that fit `GROUPS_MIN`
    times or, if none keeps it, larger ones; chips that `sweep` asks for lift the limit.

    `longest_tokens` must fit a rank's KV; `seats`: requests of a rank at once. Where `group_chips`
    change hands, a replica is several groups of whole ranks. Raises ConfigError when no replica is,
    or keeps the target.
    """
    if group_chips is not None:
        sweep = _of_groups(sweep, group_chips)
    most_chips = sweep.system.chips.count // (1 if sweep.asked.chips else GROUPS_MIN)
    while most_chips <= sweep.system.chips.count:
        found = list(_choices(sweep, slo, most_chips, longest_tokens, seats))
        if found:
            return max(found, key=lambda each: (each[0], -each[1].chips))[1]
        most_chips *= 2
    raise ConfigError(
        "slo",
        str(slo),
        f"one that a part of {sweep.system.name} keeps in its steady state with {sweep.model.name}",
    )


def _of_groups(sweep: Sweep, group_chips: int) -> Sweep:
    """The same for ranks of which groups are made."""
    partitions = [candidate.partition for _, candidate in sweep.tasks()]
    tp = {
        each.tp for each in partitions if each.chips > group_chips and not each.chips % group_chips
    }
    fitting = tuple(sorted(size for size in tp if not group_chips % size))
    if not fitting:
        made = sorted({f"{each.chips} chips in ranks of {each.tp}" for each in partitions})
        expected = f"whole ranks, several times in a partition: {', '.join(made)}"
        raise ConfigError("group-chips", group_chips, expected)
    return replace(sweep, asked=replace(sweep.asked, tp=fitting))


def _choices(
    sweep: Sweep, slo: Slo, most_chips: int, longest_tokens: int, seats: int
) -> Iterator[tuple[float, ReplicaChoice]]:
    for precision, candidate in sweep.tasks():
        if candidate.partition.chips > most_chips:
            continue
        if candidate.kv_capacity_tokens < longest_tokens + _KV_SPARE_TOKENS:
            continue
        replica = sweep.replica(precision, candidate)
        point = _within(replica, slo, seats)
        if point is None:
            continue
        guess = FirstGuess(
            rate_per_s=point.requests_per_s / candidate.replicas,
            tpot_s=point.tpot_ns / NS_PER_S,
            alone_s=replica.decode(1).duration_ns / NS_PER_S,
        )
        yield (
            point.requests_per_s,
            ReplicaChoice(candidate=candidate, precision=precision, guess=guess),
        )


def _within(replica: Replica, slo: Slo, seats: int) -> OperatingPoint | None:
    """The highest rate's operating point of those within the target in the mean."""
    if slo.ttft_s is not None and replica.prompt_ns > slo.ttft_s * NS_PER_S:
        return None
    limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
    found = replica.operating_points(replica.seated(seats))
    points = [point for point in found if point.tpot_ns <= limit_ns]
    return max(points, key=lambda point: point.requests_per_s, default=None)
