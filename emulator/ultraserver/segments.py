"""Divides a step into segments, which ranks run alone, and segments into rows.

Each kind of row is counted once; `times_of` gives its multiplicity in each segment.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers of one kind take equally long."""

    window: bool
    routed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSegment:
    """A rank's own work between two exchanges, `times` times in a step."""

    times: int
    layers: tuple[tuple[LayerKind, int], ...]


@lru_cache(maxsize=64)
def segments_of(model: ModelSpec) -> tuple[tuple[LayerSegment, ...], LayerSegment]:
    """Segments that end in an exchange, and the tail after the last one.

    Dense layers precede the first exchange; a dense model has only the tail.
    """
    kinds = _layer_kinds(model)
    if not model.moe_layers:
        return (), LayerSegment(times=1, layers=tuple(Counter(kinds).items()))
    first, rest = kinds[: model.dense_layers + 1], kinds[model.dense_layers + 1 :]
    alike = tuple(
        LayerSegment(times=count, layers=((kind, 1),)) for kind, count in Counter(rest).items()
    )
    opening = LayerSegment(times=1, layers=tuple(Counter(first).items()))
    return (opening, *alike), LayerSegment(times=1, layers=())


@lru_cache(maxsize=64)
def segment_of_layer(model: ModelSpec) -> Int64s:
    """The index in `segments_of` that each MoE layer ends, in layer order: [MoE layers]."""
    if not model.moe_layers:
        return np.zeros(0, dtype=np.int64)
    rest = _layer_kinds(model)[model.dense_layers + 1 :]
    place = {kind: 1 + index for index, kind in enumerate(Counter(rest))}
    return np.array([0, *(place[kind] for kind in rest)], dtype=np.int64)


def _layer_kinds(model: ModelSpec) -> list[LayerKind]:
    return [
        LayerKind(
            window=(layer + 1) % model.full_attention_every != 0, routed=layer >= model.dense_layers
        )
        for layer in range(model.layers)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    """A kind of row of a rank's terms, and its layers."""

    part: str
    window: bool = False

    def count_in(self, segment: LayerSegment) -> int:
        """Occurrences of the row in one run of `segment`."""
        match self.part:
            case "attention":
                fits = [kind.window == self.window for kind, _ in segment.layers]
            case "dense":
                fits = [not kind.routed for kind, _ in segment.layers]
            case "router":
                fits = [kind.routed for kind, _ in segment.layers]
            case _:
                return 0
        return sum(count for (_, count), fit in zip(segment.layers, fits, strict=True) if fit)


@lru_cache(maxsize=64)
def rows_of(model: ModelSpec, *, draft: bool = False) -> tuple[RowKind, ...]:
    """The rows of a step of `model`, the ends last.

    A `draft` module joins its token's embedding with the model's hidden row first.
    """
    rows = [RowKind(part="attention", window=window) for window in (False, True)]
    rows += [RowKind(part="dense"), RowKind(part="router")]
    segments, tail = segments_of(model)
    used = [row for row in rows if any(row.count_in(segment) for segment in (*segments, tail))]
    ends = (*(["joining"] if draft else []), "lm_head", "sampling")
    return (*used, *(RowKind(part=part) for part in ends))


@lru_cache(maxsize=64)
def times_of(model: ModelSpec, rows: tuple[RowKind, ...]) -> Float64s:
    """Occurrences of each row per segment, the tail (with the ends) last: [segments, rows]."""
    segments, tail = segments_of(model)
    times = np.array(
        [[row.count_in(segment) for row in rows] for segment in (*segments, tail)], dtype=np.float64
    )
    times[-1, [row.part in ("joining", "lm_head", "sampling") for row in rows]] = 1.0
    return times
