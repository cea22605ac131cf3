"""Divides a step's duration into named parts.

Parts sum to the slowest domain's duration: segments of its slowest rank, experts of its slowest
chip in each layer.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.timing.roofline import ENGINES
from emulator.ultraserver.step_rows import HOST_OVERHEADS, OWN_OVERHEADS, TimedStep

Parts = dict[str, float]

EXPERTS: Final = "experts"
DISPATCH_COMBINE: Final = "dispatch_combine"
TP_COLLECTIVES: Final = "tp_collectives"
COLLECTIVE_LAUNCH: Final = "collective_launch"
THROTTLE: Final = "throttle"  # by which the whole step is stretched
BOTH_WAYS: Final = 2  # dispatch and combine


class CriticalPath:
    """Work of the slowest in `domain`, by `segment_ns` [segments, ranks]; `runs` [segments]."""

    def __init__(
        self,
        timed: TimedStep,
        segment_ns: Float64s,
        domain: int,
        *,
        runs: Float64s,
        experts: bool = True,
    ) -> None:
        terms = timed.terms
        self.timed = timed
        first = domain * terms.ranks_per_domain
        own = segment_ns[:, first : first + terms.ranks_per_domain]
        self._ranks: Int64s = first + own.argmax(axis=1)  # [segments]
        self._runs = runs
        self._weights = runs[:, None] * terms.times  # [segments, rows]
        self._chips: Int64s | None = None
        self.experts = timed.experts if experts else None
        if self.experts is not None:
            chips = self.experts.compute_ns
            width = chips.shape[1] // terms.domains
            mine = chips[:, domain * width : (domain + 1) * width]
            self._chips = domain * width + mine.argmax(axis=1)  # [kinds]

    def compute_parts(self) -> Parts:
        """Parts with engines, and named overheads; no communication."""
        timed = self.timed
        busiest = self.by_row(timed.rows.busiest_ns)  # [rows]
        parts: Parts = {}
        for name, row_ns in zip(timed.terms.parts, busiest.tolist(), strict=True):
            parts[name] = parts.get(name, 0.0) + row_ns
        if self.experts is not None:
            parts[EXPERTS] = float(self.on_chips(self.experts.busiest_ns))
        return {**parts, **self.overheads()}

    def overheads(self) -> Parts:
        """Named overheads of rows and experts, then of the host."""
        own = self.timed.rows.own_ns[:, :, self._ranks]  # [overheads, rows, segments]
        overheads = np.einsum("ors,sr->o", own, self._weights)
        if self.experts is not None:
            overheads = overheads + self.on_chips(self.experts.own_ns)
        host = self.timed.host_ns[:, self._ranks[-1]] * self._runs[-1]
        names = (*OWN_OVERHEADS, *HOST_OVERHEADS)
        return dict(zip(names, (*overheads.tolist(), *host.tolist()), strict=True))

    def collective_parts(self) -> Parts:
        """Collectives of ranks of several chips."""
        rows = self.timed.rows
        return {
            TP_COLLECTIVES: float(self.by_row(rows.link_ns).sum()),
            COLLECTIVE_LAUNCH: float(self.by_row(rows.launch_ns).sum()),
        }

    def communication_parts(self) -> Parts:
        """Collectives, and the exchanges of tokens."""
        parts = self.collective_parts()
        parts[DISPATCH_COMBINE] = 0.0
        if self.experts is not None:
            runs = self.timed.kind_runs
            launch_ns = BOTH_WAYS * self.experts.launch_ns.max(axis=1)  # [kinds]
            exchanges_ns = self.timed.exchange_ns.sum(axis=0) - launch_ns
            parts[DISPATCH_COMBINE] = float(runs @ exchanges_ns)
            parts[COLLECTIVE_LAUNCH] += float(runs @ launch_ns)
        return parts

    def bound(self) -> dict[str, str]:
        """The engine that each part waits for, where it has work."""
        timed = self.timed
        rows = timed.rows.engine_ns[:, :, self._ranks]  # [engines, rows, segments]
        by_row = np.einsum("ers,sr->er", rows, self._weights)
        found: dict[str, Float64s] = {}
        for place, name in enumerate(timed.terms.parts):
            found[name] = found.get(name, 0.0) + by_row[:, place]
        if self.experts is not None:
            found[EXPERTS] = self.on_chips(self.experts.engine_ns)
        return {name: ENGINES[int(ns.argmax())] for name, ns in found.items() if ns.any()}

    def by_row(self, row_ns: Float64s) -> Float64s:
        """[rows, ranks] -> [rows]: of the slowest ranks, over all segments."""
        total: Float64s = np.einsum("rs,sr->r", row_ns[:, self._ranks], self._weights)
        return total

    def on_chips(self, kind_ns: Float64s) -> Float64s:
        """[..., kinds, chips] -> [...]: of the slowest chips, over all layers."""
        assert self._chips is not None
        kinds = np.arange(len(self._chips))
        total: Float64s = kind_ns[..., kinds, self._chips] @ self.timed.kind_runs
        return total


def added(first: Parts, second: Parts) -> Parts:
    """Both together, part by part."""
    return {
        name: first.get(name, 0.0) + second.get(name, 0.0)
        for name in dict.fromkeys((*first, *second))
    }
