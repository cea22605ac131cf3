"""Which partition a replica has: the unit that serves or trains as a whole.

The steady state says what a machine full of each candidate takes while the mean time between tokens
keeps to the target. Small replicas follow the demand in finer steps, so the smallest one is taken
whose machine takes nearly as much as the best.
"""

from dataclasses import dataclass
from typing import Final

from emulator.model import ConfigError
from emulator.units import NS_PER_S
from serving.steady_state.operating_point import OperatingPoint
from serving.steady_state.partitions import Candidate
from serving.steady_state.replica import Replica
from serving.steady_state.sweep import Sweep
from serving.traffic.slo import Slo
from serving.virtual_day.curve_search import FirstGuess

NEARLY: Final = 0.9
"""Of the best machine's rate: what a smaller replica may give up for finer steps."""
GROUPS_MIN: Final = 2
"""Replicas that a machine has at least, so that some can serve and some train."""
_KV_SPARE_TOKENS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """A candidate in its precision, and what the steady state expects of one replica."""

    candidate: Candidate
    precision: str
    guess: FirstGuess

    @property
    def chips(self) -> int:
        """Of one replica."""
        return self.candidate.partition.chips


def choose_replica(
    sweep: Sweep, slo: Slo, *, longest_tokens: int, seats: int, groups_min: int = GROUPS_MIN
) -> ReplicaChoice:
    """The smallest replica whose machine takes at least `NEARLY` of the best one's rate.

    Of equal chips the one that takes more. `longest_tokens` must fit a rank's KV, `seats` is how
    many requests a rank may have at once. Raises ConfigError when no replica keeps the target.
    """
    most_chips = sweep.system.chips.count // groups_min
    found: list[tuple[float, ReplicaChoice]] = []
    for precision, candidate in sweep.tasks():
        if candidate.partition.chips > most_chips:
            continue
        if candidate.kv_room_tokens < longest_tokens + _KV_SPARE_TOKENS:
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
        choice = ReplicaChoice(candidate=candidate, precision=precision, guess=guess)
        found.append((point.requests_per_s, choice))
    if not found:
        raise ConfigError(
            field="slo",
            value=str(slo),
            expected=f"one that {sweep.model.name} keeps in its steady state on a part of "
            f"{sweep.system.name}, of which there are {groups_min} or more",
        )
    enough = NEARLY * max(rate for rate, _ in found)
    _, chosen = min(
        ((rate, choice) for rate, choice in found if rate >= enough),
        key=lambda each: (each[1].chips, -each[0]),
    )
    return chosen


def _within(replica: Replica, slo: Slo, seats: int) -> OperatingPoint | None:
    """The largest batch that keeps the target in the mean; None without one."""
    if slo.ttft_s is not None and replica.prompt_ns > slo.ttft_s * NS_PER_S:
        return None
    limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
    batches = sorted({min(batch, seats) for batch in replica.batches()})
    points = [point for point in replica.operating_points(batches) if point.tpot_ns <= limit_ns]
    return max(points, key=lambda point: point.requests_per_s, default=None)
