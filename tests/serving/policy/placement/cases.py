"""Loads, placements and machines for tests of placement."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.policy.placement.chip_loads import Load, chip_loads

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


def zipf_load(*, layers: int, experts: int, exponent: float, seed: int) -> I64:
    """A million pairs a layer, from a Zipf law over the experts in each layer's own order."""
    random = np.random.default_rng(seed)
    share = 1 / np.arange(1, experts + 1) ** exponent
    share /= share.sum()
    shares = (random.permutation(share) for _ in range(layers))
    return np.stack([random.multinomial(1_000_000, one) for one in shares])


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    tray_of_chip: I64
    rack_of_chip: I64

    @property
    def chips(self) -> int:
        return len(self.tray_of_chip)

    @property
    def places(self) -> dict[str, I64]:
        return {"tray_of_chip": self.tray_of_chip, "rack_of_chip": self.rack_of_chip}


def machine(*, racks: int, trays: int, chips: int) -> Machine:
    chip = np.arange(racks * trays * chips)
    return Machine(tray_of_chip=chip // chips, rack_of_chip=chip // (chips * trays))


machines = st.builds(
    machine, racks=st.integers(1, 3), trays=st.integers(1, 3), chips=st.integers(1, 3)
)


def placement(*layers: list[list[int]], experts: int, ep: int) -> ExpertPlacement:
    """From lists: placement([[0, 1], [2, EMPTY]]) has one layer of two chips."""
    return ExpertPlacement(experts=experts, ep=ep, expert_of_slot=np.array(layers, dtype=np.int64))


@st.composite
def placements(
    draw: st.DrawFn, *, shape: tuple[int, int, int] | None = None, complete: bool = True
) -> ExpertPlacement:
    """Any placement: experts anywhere, also twice on a chip, and empty slots.

    `shape` is (layers, chips, slots) of one group; a complete one holds every expert.
    """
    if shape is None:
        shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)))
        groups = draw(st.integers(1, 2))
    else:
        groups = 1
    layers, ep, slots = shape
    experts = draw(st.integers(1, ep * slots))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    held = random.integers(EMPTY, experts, (layers, groups, ep * slots))
    if complete:
        held[..., :experts] = np.arange(experts)
    held = random.permuted(held, axis=-1).reshape(layers, groups * ep, slots)
    return ExpertPlacement(experts=experts, ep=ep, expert_of_slot=held)


def loads_for(placed: ExpertPlacement, *, by_group: bool = False) -> st.SearchStrategy[I64]:
    """Small whole loads, with many ties and zeros."""
    shape = (placed.layers, placed.experts)
    if by_group:
        shape = (placed.chips // placed.ep, *shape)  # type: ignore[assignment]
    size = int(np.prod(shape))
    return st.lists(st.integers(0, 9), min_size=size, max_size=size).map(
        lambda values: np.array(values, dtype=np.int64).reshape(shape)
    )


def imbalance(load: Load, placed: ExpertPlacement, usable: Bools | None = None) -> F64:
    """The busiest usable chip's load over the usable mean: [layers]; 1.0 without load."""
    loads = chip_loads(load, placed)
    if usable is not None:
        loads = loads[:, usable]
    total = loads.sum(axis=1)
    busiest = loads.max(axis=1) * loads.shape[1]
    return np.where(total > 0, busiest / np.where(total > 0, total, 1.0), 1.0)
