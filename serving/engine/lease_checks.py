"""Checks the chips of a lease: whole ranks of the partition, in service and serving."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from emulator.errors import ConfigError
from emulator.memory.training_memory import check_training_fits
from emulator.specs.hbm_usage import HbmOwner
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.machine import Machine
from serving.errors import LeaseRefused


def training_hbm(
    system: SystemSpec, model: ModelSpec, *, lnc: int
) -> Callable[[int], Mapping[HbmOwner, int]]:
    """Training's bytes per chip by owner, given the number of chips; that raises HbmExhausted."""

    def needs(chips: int) -> Mapping[HbmOwner, int]:
        recipe = TrainingRecipe(lnc=lnc)
        return check_training_fits(system, model, chips, recipe).training

    return needs


def chips_that_can_leave(
    chips: Sequence[int],
    machine: Machine,
    health: Health,
    phases: Mapping[int, str],
    *,
    leaves_some: bool,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of `chips` that leave, and those of their ranks that are up, as the machine numbers
    them.

    With `leaves_some` chips that have failed, or have no rank, stay if others of `chips` leave.
    `health` includes faults that no step has met; `phases` are of leased chips. Raises ConfigError
    for no, unknown or repeated chips, LeaseRefused for chips that cannot be leased now.
    """
    _check_exist(chips, len(health.lost))
    partition, seats = machine.partition, machine.seating.chip_of_position
    if leaves_some:
        held = set(seats.tolist()) | set(phases)
        chips = [chip for chip in chips if health.works[chip] and chip in held] or chips
    for chip in chips:
        if chip in phases:
            raise LeaseRefused(f"chip {chip} is {phases[chip]} already: it is in another lease")
        if not health.in_service[chip]:
            raise LeaseRefused(f"chip {chip} is not in service: it is {health.state_of(chip)}")
    standing = sorted(set(chips).difference(seats.tolist()))
    if standing:
        raise LeaseRefused(f"chip {standing[0]} stands by and has no rank")
    positions = np.flatnonzero(np.isin(seats, list(chips)))
    ranks = sorted({partition.rank_of_chip(position) for position in positions.tolist()})
    for rank in ranks:
        seated = (int(seats[position]) for position in partition.chips_of_rank(rank))
        mates = [chip for chip in seated if chip != VACANT and health.works[chip]]
        if not set(mates) <= set(chips):
            named = ", ".join(map(str, mates))
            raise LeaseRefused(
                f"chips are lent out as whole ranks of {partition.tp}: rank {rank} is chips {named}"
            )
        if not machine.ranks_up[rank] and len(mates) == partition.tp:
            raise LeaseRefused(f"rank {rank} is down")
    return tuple(sorted(chips)), tuple(rank for rank in ranks if machine.ranks_up[rank])


def _check_exist(chips: Collection[int], count: int) -> None:
    if not chips:
        raise ConfigError("chips", "none", "the chips of at least one rank")
    for chip in chips:
        if not 0 <= chip < count:
            raise ConfigError("chips", chip, f"0 to {count - 1}")
    if len(set(chips)) != len(chips):
        raise ConfigError("chips", list(chips), "each chip once")
