"""Cost of balancing the experts of a whole UltraServer, its gain and its moves.

144 chips, 60 layers, 256 experts and 32 copies; a million pairs a layer from a Zipf law, over each
layer's own order of experts. Imbalance is the busiest chip over the mean, averaged over layers; the
bound holds for any packing of the same copies.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import ExpertPlacement
from serving.policy.placement.balance import rebalance
from serving.policy.placement.migration import migration
from tests.serving.policy.placement.cases import imbalance, machine, zipf_load

PLACE = machine(racks=2, trays=18, chips=4)
LAYERS = 60
EXPERTS = 256
SLOTS = 2
LOST = 17
REPEATS = 5

Result = TypeVar("Result")


def run() -> None:
    even = ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=PLACE.chips, ep=PLACE.chips)
    print(
        f"{'Zipf':>4} {'occasion':<22} {'ms':>5} {'before':>7} {'after':>6} "
        f"{'bound':>6} {'moved':>6}"
    )
    for exponent in (0.8, 1.2):
        load = zipf_load(layers=LAYERS, experts=EXPERTS, exponent=exponent, seed=0)
        placed = _balance(f"{exponent:>4} even to balanced", load, even)
        other = zipf_load(layers=LAYERS, experts=EXPERTS, exponent=exponent, seed=1)
        _balance(f"{exponent:>4} a tenth of it changes", load * 9 + other, placed)
        _lose(f"{exponent:>4} a chip is lost", load, placed)


def _balance(what: str, load: NDArray[np.int64], before: ExpertPlacement) -> ExpertPlacement:
    after, milliseconds = _timed(
        lambda: rebalance(load, slots=SLOTS, ep=PLACE.chips, previous=before, **PLACE.places)
    )
    _print(what, milliseconds, load, (before, after), np.ones(PLACE.chips, dtype=np.bool_))
    return after


def _lose(what: str, load: NDArray[np.int64], before: ExpertPlacement) -> None:
    usable = np.arange(PLACE.chips) != LOST
    after, milliseconds = _timed(
        lambda: rebalance(
            load, slots=SLOTS, ep=PLACE.chips, previous=before, usable=usable, **PLACE.places
        )
    )
    _print(what, milliseconds, load, (before, after), usable)


def _print(
    what: str,
    milliseconds: float,
    load: NDArray[np.int64],
    placements: tuple[ExpertPlacement, ExpertPlacement],
    usable: NDArray[np.bool_],
) -> None:
    before, after = placements
    live = before.without(np.flatnonzero(~usable).tolist())
    moves = migration(live, after, **PLACE.places)
    per_copy = (load / after.copies()[0]).max(axis=1)  # [layers]
    bound = np.maximum(per_copy * usable.sum() / load.sum(axis=1), 1.0)
    print(
        f"{what:<27} {milliseconds:>5.1f} {imbalance(load, before).mean():>7.3f} "
        f"{imbalance(load, after, usable).mean():>6.3f} {bound.mean():>6.3f} "
        f"{len(moves) / after.expert_of_slot.size:>6.1%}"
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    walls = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = work()
        walls.append(time.perf_counter() - started)
    return result, float(np.median(walls)) * 1e3


if __name__ == "__main__":
    run()
