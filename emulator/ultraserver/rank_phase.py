"""What the chips of each rank do in a layer by themselves, before and after the routed experts.

Attention, then a dense network or the router with shared experts; the partial sums that heads and
columns leave are added up over a chip's logical cores and over the rank's chips.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_reduce import RankAllReduce
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.core_all_reduce import CoreAllReduce
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.timing.attention_work import attention_work
from emulator.timing.feed_forward_work import dense_work, ends_work, router_work
from emulator.timing.head_split import head_split
from emulator.timing.rank_totals import RankTotals
from emulator.timing.roofline import (
    ENGINES,
    busy_ns,
    engine_rates,
    exposed_start_ns,
    overlapped_ns,
)
from emulator.timing.work import LOGIT_BYTES

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

_DMA: Final = ENGINES.index("dma")
HIDDEN_BYTES_PER_ELEMENT: Final = 2  # assumed: hidden rows travel in BF16, whatever the dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers of one kind take equally long."""

    window: bool
    routed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a rank does alone between two exchanges, `times` times in a step."""

    times: int
    layers: tuple[tuple[LayerKind, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Of each rank: its time, how long its chips' engines are busy, and how long their links."""

    duration_ns: Float64s  # [ranks]
    busy_ns: Float64s  # [engines, ranks]
    link_ns: Float64s  # [ranks]

    def __add__(self, other: "Phase") -> "Phase":
        return Phase(
            duration_ns=self.duration_ns + other.duration_ns,
            busy_ns=self.busy_ns + other.busy_ns,
            link_ns=self.link_ns + other.link_ns,
        )

    def times(self, count: int) -> "Phase":
        """The same `count` times, one after the other."""
        return Phase(
            duration_ns=count * self.duration_ns,
            busy_ns=count * self.busy_ns,
            link_ns=count * self.link_ns,
        )


def segments_of(model: ModelSpec) -> tuple[tuple[Segment, ...], Segment]:
    """The segments that end in an exchange, and what comes after the last one.

    Dense layers come before the first exchange; a dense model has none and ends with all layers.
    """
    kinds = [
        LayerKind(
            window=(layer + 1) % model.full_attention_every != 0,
            routed=layer >= model.dense_layers,
        )
        for layer in range(model.layers)
    ]
    if not model.moe_layers:
        return (), Segment(times=1, layers=tuple(Counter(kinds).items()))
    first, rest = kinds[: model.dense_layers + 1], kinds[model.dense_layers + 1 :]
    alike = tuple(
        Segment(times=count, layers=((kind, 1),)) for kind, count in Counter(rest).items()
    )
    opening = Segment(times=1, layers=tuple(Counter(first).items()))
    return (opening, *alike), Segment(times=1, layers=())


class RankPhases:
    """The phases of every rank of one partition.

    `physical` are its chips' numbers in the system, int64[chips], and `all_to_all` their links.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        physical: Int64s,
        all_to_all: AllToAll,
    ) -> None:
        self._model = model
        self._cores = CoreAllReduce(system.chip, partition.lnc)
        self._chips = RankAllReduce(
            system, tp=partition.tp, physical=physical, all_to_all=all_to_all
        )
        self.split = head_split(model, tp=partition.tp, cores=self._cores.cores)
        self._rates = engine_rates(system.chip, model.dtype)
        self._start_ns = exposed_start_ns(system.chip)

    def layer(self, kind: LayerKind, totals: RankTotals, slow: Float64s) -> Phase:
        """One layer; `slow` [ranks] is how many times as long each rank's slowest chip takes.

        The engines' busy times are those of a chip that is not slow.
        """
        model, split = self._model, self.split
        work = attention_work(model, totals, split, window=kind.window)
        hidden_bytes = totals.tokens * model.hidden * HIDDEN_BYTES_PER_ELEMENT
        sums = 1  # of partial rows, over the logical cores
        link_ns = 2 * self._chips.moving_ns(hidden_bytes)
        chips_ns = self._chips.all_reduce_ns(hidden_bytes)
        if kind.routed:
            work = work + router_work(model, totals, split)
            # What the experts answer is gathered over the rank's chips, each of which got it for
            # its part of the tokens; with shared experts, their partial sums are added up on the
            # way.
            phases = 2 if model.shared_experts else 1
            sums += 1 if model.shared_experts else 0
        else:
            work = work + dense_work(model, totals, split)
            phases = 2
            sums += 1
        link_ns = link_ns + phases * self._chips.moving_ns(hidden_bytes)
        chips_ns = chips_ns + phases * self._chips.all_gather_ns(hidden_bytes)
        busy = busy_ns(work, self._rates)
        core_ns = sums * self._cores.duration_ns(hidden_bytes)
        duration_ns = slow * (overlapped_ns(busy) + core_ns) + chips_ns
        busy[_DMA] += sums * self._cores.moving_ns(hidden_bytes)
        started_ns = self._start_ns * (totals.tokens > 0)
        return Phase(duration_ns=duration_ns + started_ns, busy_ns=busy, link_ns=link_ns)

    def segment(self, segment: Segment, totals: RankTotals, slow: Float64s) -> Phase:
        """The layers of a segment, once."""
        phase = self.nothing(len(totals.tokens))
        for kind, count in segment.layers:
            phase = phase + self.layer(kind, totals, slow).times(count)
        return phase

    def ends(self, totals: RankTotals, slow: Float64s) -> Phase:
        """Embedding, LM head and sampling, once per step.

        Embedded rows are added up, and logits gathered, over the chips that divide the vocabulary.
        """
        model = self._model
        busy = busy_ns(ends_work(model, totals, self.split), self._rates)
        hidden_bytes = totals.tokens * model.hidden * HIDDEN_BYTES_PER_ELEMENT
        logit_bytes = totals.logit_rows * model.vocab * LOGIT_BYTES
        return Phase(
            duration_ns=slow * overlapped_ns(busy)
            + self._chips.all_reduce_ns(hidden_bytes)
            + self._chips.all_gather_ns(logit_bytes),
            busy_ns=busy,
            link_ns=2 * self._chips.moving_ns(hidden_bytes) + self._chips.moving_ns(logit_bytes),
        )

    def nothing(self, ranks: int) -> Phase:
        """A phase of no work."""
        return Phase(
            duration_ns=np.zeros(ranks),
            busy_ns=np.zeros((len(ENGINES), ranks)),
            link_ns=np.zeros(ranks),
        )
