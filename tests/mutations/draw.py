"""The faults of a seed: equally many from each area, at most one per function."""

import functools
import hashlib
from collections.abc import Collection
from typing import Final

from tests.mutations.areas import AREAS, ROOT, Area
from tests.mutations.faults import Fault, faults_of

PER_AREA: Final = 10


def drawn(seed: int, *, without: Collection[str] = ()) -> list[Fault]:
    """Draw `PER_AREA` faults of each area; `without` are names of equivalent ones."""
    return [fault for area in AREAS for fault in _drawn_of(area, seed, without)]


def _drawn_of(area: Area, seed: int, without: Collection[str]) -> list[Fault]:
    def lot(fault: Fault) -> str:
        return hashlib.sha256(f"{seed}\0{fault.name}".encode()).hexdigest()

    found: list[Fault] = []
    for fault in sorted(_candidates(area), key=lot):
        taken = {(each.module, each.function) for each in found}
        if fault.name not in without and (fault.module, fault.function) not in taken:
            found.append(fault)
        if len(found) == PER_AREA:
            return found
    raise ValueError(f"{area.name}: {len(found)} faults, of {PER_AREA} that are drawn")


@functools.cache
def _candidates(area: Area) -> tuple[Fault, ...]:
    return tuple(
        fault
        for module in area.modules()
        for fault in faults_of(module, (ROOT / module).read_text(encoding="utf-8"))
    )
