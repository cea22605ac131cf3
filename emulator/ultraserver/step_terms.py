"""A counted, untimed step: the demand of each part on each engine and link at peak rates.

Counting is the expensive half of a step's cost, and independent of the calibration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseTerms:
    """Rows of a step, once each; columns are ranks or chips.

    `engine_ns` is at peak rates, without the `ramp_ns` that the matrix engine loses to its clock.
    `core_ns`: sums over a chip's logical cores, of which `core_moving_ns` moves data. `link_ns` and
    `latency_ns` are of all collectives of the row; `collectives` counts each once for every
    doubling of its chips. Flops, HBM bytes and link bytes are the real ones.
    """

    engine_ns: Float64s  # [engines, rows, columns]
    ramp_ns: Float64s  # [rows, columns], like all others
    core_ns: Float64s
    core_moving_ns: Float64s
    fill_drain_ns: Float64s
    dma_start_ns: Float64s
    launch_ns: Float64s
    link_ns: Float64s
    latency_ns: Float64s
    collectives: Float64s
    flops: Float64s  # [rates, rows, columns]
    hbm_bytes: Float64s
    link_bytes: Float64s

    @classmethod
    def joined(cls, parts: Sequence["PhaseTerms"], *, axis: int) -> Self:
        """Rows one below the other with axis -2, columns side by side with -1."""
        return cls(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=axis)
                for field in fields(cls)
            }
        )

    def changed(self, change: Callable[[Float64s], Float64s]) -> Self:
        """The same with every array changed, [..., columns] each."""
        return type(self)(
            **{field.name: change(getattr(self, field.name)) for field in fields(self)}
        )

    def without_talk(self) -> Self:
        """The same without collectives."""
        none = np.zeros_like(self.link_ns)
        return replace(self, link_ns=none, latency_ns=none, collectives=none, link_bytes=none)

    def columns(self, own: slice | list[int]) -> Self:
        """The same rows of some columns."""
        return self.changed(lambda array: array[..., own])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """One step of all ranks, counted.

    Ranks run `runs` of each segment, with `times` of each row of `rank`. All but the last segment
    end in an exchange: MoE layer i runs segment `segment_of_layer[i]` and then row
    `kind_of_layer[i]` of `experts`, whose links are those of a combine; the dispatch takes
    `dispatch_share` of its `link_ns`. Ranks of a domain wait for each other after every segment.

    `stores_slower` [kinds]: how many times as long as at the share between domains a byte of the
    exchange takes; more than 1 where domains forward and their own links are the busiest.

    `layers` and `expert_layers` [rows] mark the rows that stand for a layer. `halves`: the step's
    two half batches, if any; `drafts`: passes of a draft module after it.
    """

    parts: tuple[str, ...]  # [rows], a name each
    rank: PhaseTerms  # columns are ranks
    layers: Float64s
    expert_layers: Float64s
    times: Float64s  # [segments, rows]
    runs: Float64s  # [segments]
    segment_of_layer: Int64s  # [MoE layers]
    kind_of_layer: Int64s  # [MoE layers]
    experts: PhaseTerms | None  # rows are kinds of layers, columns are chips
    dispatch_share: float
    stores_slower: Float64s
    slow: Float64s  # [chips]
    tp: int
    ranks_per_domain: int
    requests: Float64s  # [ranks]
    prefills: Float64s  # [ranks]
    busy: Bools  # [ranks]
    launch_ns: float
    halves: "tuple[StepTerms, StepTerms] | None" = None
    drafts: "tuple[StepTerms, ...]" = ()

    @property
    def ranks(self) -> int:
        """Data-parallel replicas."""
        return len(self.requests)

    @property
    def domains(self) -> int:
        """Groups of ranks that wait for each other."""
        return self.ranks // self.ranks_per_domain

    def halves_changed(
        self, change: "Callable[[StepTerms], StepTerms]"
    ) -> "tuple[StepTerms, StepTerms] | None":
        """Its half batches, changed; None without them."""
        return None if self.halves is None else (change(self.halves[0]), change(self.halves[1]))

    @property
    def rank_slow(self) -> Float64s:
        """The factor of each rank's slowest chip: [ranks]."""
        slowest: Float64s = self.slow.reshape(-1, self.tp).max(axis=1)
        return slowest

    @property
    def runs_of_kind(self) -> Float64s:
        """Number of layers for each row of `experts`: [kinds]."""
        rows = 0 if self.experts is None else self.experts.ramp_ns.shape[0]
        return np.bincount(self.kind_of_layer, minlength=rows).astype(np.float64)
