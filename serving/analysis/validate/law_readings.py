"""What laws of measured kernels say of a Trainium, one assumption of the cost model at a time.

A law's base holds for machines and stacks without measurements. Each reading puts what a law has in
the place of one assumption, keeps the Trainium's own figures (its arrays, cores, HBM and links) and
all other assumptions, and predicts every public Trainium point again. No reading ships: the laws
are of GPU kernels, and the points too few to choose by.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log2
from typing import Any, Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.calibration import Calibration
from emulator.specs.figure import Figure
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.timing.laws.product_law import TILES
from emulator.timing.laws.shipped_laws import shipped_law
from emulator.timing.matrix_time import (
    ATTENTION_SEQUENCES,
    ROUTER_SEQUENCES,
)
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.analysis.validate.trainium_points import TRAINIUM_POINTS, trainium_ns

_FORMAT: Final = "bfloat16"  # of every public point
_CHIPS: Final = 8  # of the measured collectives
_SYSTEM: Final = "trn3-nl32x2"
ALL: Final = "all points"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawReading:
    """One assumption: the model's value, the law's, both in `unit`, and where the law's is from.

    Attributes:
        constant: of the calibration, or a figure of the chip (`of_chip`).
    """

    words: str
    constant: str
    model: float
    law: float
    unit: str
    source: str
    of_chip: bool = False

    def predict_ns(self) -> Float64s:
        """Every public point with the law's value alone in place of the model's, [points]."""
        return _predicted_ns([self])


@dataclass(frozen=True, slots=True, kw_only=True)
class PointScore:
    """Errors of some public points: the median, and the median with its sign."""

    points: int
    median: float
    bias: float

    @classmethod
    def of(cls, predicted_ns: Float64s, measured_ns: Float64s) -> "PointScore":
        """Of at least one point."""
        error = predicted_ns / measured_ns - 1
        return cls(
            points=len(error),
            median=float(np.median(np.abs(error))),
            bias=float(np.median(error)),
        )


def law_readings() -> tuple[LawReading, ...]:
    """Every assumption of a Trainium's step that a law of kernels has something to say of."""
    return (*_of_engines(), *_of_overheads())


def _of_engines() -> tuple[LawReading, ...]:
    products, decode = shipped_law("GEMM", format=_FORMAT), shipped_law("GQA decode")
    return (
        _shared(
            "full tiles: the array's share of its peak",
            "tensor_share",
            products.tensor_share / (1 + products.edge),
            "of peak",
            "GEMM: tensor_share in BF16, over 1 + edge of 128 x 128 tiles, which the array has",
        ),
        LawReading(
            words="few rows: those that an issue lasts for at least",
            constant="moving_rows_min",
            model=system_by_name(_SYSTEM).chip.matrix.moving_rows_min.value,
            law=float(min(rows for rows, _ in TILES)),
            unit="rows",
            source="GEMM: the smallest tile; an array streams rows past 128 x 128 weights",
            of_chip=True,
        ),
        _shared(
            "weights: share of HBM's rate",
            "memory_share",
            products.memory_share,
            "of peak",
            "GEMM: memory_share in BF16",
        ),
        _shared(
            "caches: share of HBM's rate",
            "memory_share",
            decode.memory_share,
            "of peak",
            "GQA decode: memory_share; taken for weights, too",
        ),
        _shared(
            "products and loads at once",
            "turn_taking",
            1 / products.overlap,
            "1 / exponent",
            "GEMM: overlap",
        ),
    )


def _of_overheads() -> tuple[LawReading, ...]:
    products, collectives = shipped_law("GEMM", format=_FORMAT), shipped_law("collectives")
    decode, experts = shipped_law("GQA decode"), shipped_law("MoE")
    sequences = ATTENTION_SEQUENCES - 2 + ROUTER_SEQUENCES  # beside attention's own and experts
    return (
        _shared(
            "a layer's overheads",
            "layer_ns",
            sequences * products.start_ns + decode.start_ns + experts.start_ns,
            "ns",
            f"start_ns of {sequences} GEMMs, GQA decode and MoE; a compiled graph has no launches",
        ),
        _shared(
            "a collective's start, for each doubling of its chips",
            "collective_ns",
            collectives.start_ns / log2(_CHIPS) + collectives.doubling_ns,
            "ns",
            f"collectives: start_ns over {_CHIPS} chips and doubling_ns",
        ),
        _shared(
            "share of the links' rate",
            "link_share",
            collectives.link_share,
            "of peak",
            "collectives: link_share",
        ),
    )


def _shared(words: str, constant: str, law: float, unit: str, source: str) -> LawReading:
    """Of a constant of the calibration that ships."""
    shipped = calibration_for(system_by_name(_SYSTEM).chip.name)
    return LawReading(
        words=words,
        constant=constant,
        model=getattr(shipped, constant).value,
        law=law,
        unit=unit,
        source=source,
    )


def trainium_scores(predicted_ns: Float64s | None = None) -> Mapping[str, PointScore]:
    """Of all public points, none left out, and by kind; by default as the model ships."""
    found = _predicted_ns(()) if predicted_ns is None else predicted_ns
    measured_ns = np.array([point.measured_ms * 1e6 for point in TRAINIUM_POINTS])
    kinds = np.array([point.kind for point in TRAINIUM_POINTS])
    scores = {ALL: PointScore.of(found, measured_ns)}
    for kind in dict.fromkeys(kinds.tolist()):
        scores[kind] = PointScore.of(found[kinds == kind], measured_ns[kinds == kind])
    return scores


def _predicted_ns(readings: Sequence[LawReading]) -> Float64s:
    figures = [f"{each.constant}={each.law:g}" for each in readings if each.of_chip]
    changes = [each for each in readings if not each.of_chip]
    change = partial(_changed, readings=changes)
    return np.array([trainium_ns(each, figures=figures, change=change) for each in TRAINIUM_POINTS])


def _changed(shipped: Calibration, *, readings: Sequence[LawReading]) -> Calibration:
    made: dict[str, Any] = {
        each.constant: Figure(each.law, each.unit, each.source) for each in readings
    }
    return replace(shipped, **made)


_Row = tuple[str, LawReading | None, Mapping[str, PointScore]]


def _rows() -> Iterator[_Row]:
    yield "as it ships", None, trainium_scores()
    readings = law_readings()
    for each in readings:
        yield each.words, each, trainium_scores(each.predict_ns())
    distinct = {each.constant: each for each in reversed(readings)}  # the first of a constant
    yield "all of them", None, trainium_scores(_predicted_ns(list(distinct.values())))


def reading_lines() -> Iterator[str]:
    """The points' scores as the model ships, and with each law's reading in its place; how many
    points a median is of stands in its heading.
    """
    rows = list(_rows())
    yield "Public Trainium points, by what laws of measured kernels say, one assumption at a time"
    yield from table_lines(table_of(_columns(rows[0][2]), rows))
    yield from (f"- {each.words}: {each.source}" for _, each, _ in rows if each is not None)


def as_data() -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "assumption": words,
            **({} if reading is None else asdict(reading)),
            "scores": {kind: asdict(score) for kind, score in scores.items()},
        }
        for words, reading, scores in _rows()
    ]


def _columns(shipped: Mapping[str, PointScore]) -> list[Column[_Row]]:
    def median(kind: str) -> Callable[[_Row], object]:
        return lambda row: row[2][kind].median

    def bias(row: _Row) -> object:
        return row[2][ALL].bias

    return [
        Column("assumption", lambda row: row[0], align="left"),
        Column("model", lambda row: None if row[1] is None else row[1].model, ",.4g"),
        Column("law", lambda row: None if row[1] is None else row[1].law, ",.4g"),
        Column("unit", lambda row: None if row[1] is None else row[1].unit, align="left"),
        *(
            Column(f"{kind} ({score.points})", median(kind), ".1%")
            for kind, score in shipped.items()
        ),
        Column("bias", bias, "+.1%"),
    ]
