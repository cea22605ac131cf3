"""An explanation as a document, and as plain data for JSON."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from emulator.specs.attention_split import AttentionSplit
from emulator.specs.figure import Figure
from emulator.ultraserver.step_waterfall import WaterfallTerm
from emulator.units import NS_PER_S
from loadgen.records.plain_number import counted
from reporting.document import Column, Document, Lines, Section, Table, table_of
from reporting.numbers import number, percent, signed_percent, with_prefix
from serving.analysis.explain.explanation import Explanation
from serving.analysis.explain.other_layouts import OtherLayout
from serving.analysis.explain.sensitivity import Sensitivity

LEAST_SHARE: Final = 0.002
"""Of the step: shorter terms are one line of a table."""
_MS: Final = 1e6
_LAYOUTS: Final = 5
_CHANGES: Final = 4
_WHAT_IFS: Final = 3
_UNITS: Final = {"flops": "FLOP/s", "operations": "op/s", "bytes": "bytes"}


class _Numbered:
    """Sources in order of their first use."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, figures: Iterable[tuple[str, Figure]]) -> str:
        """Numbers of the figures' sources; assumed ones say so."""
        marks = []
        for _, figure in figures:
            if figure.source not in self.texts:
                self.texts.append(figure.source)
            place = self.texts.index(figure.source) + 1
            marks.append(f"[{place}]{' assumed' if figure.assumed else ''}")
        return ", ".join(dict.fromkeys(marks))

    def lines(self) -> tuple[str, ...]:
        return tuple(f"[{place}] {text}" for place, text in enumerate(self.texts, start=1))


def explain_document(found: Explanation, *, rows: int) -> Document:
    """The explanation for people, with at most `rows` sensitivities."""
    sources = _Numbered()
    question = found.question
    sections: list[Section] = [
        Lines(rows=tuple(_about(found))),
        _waterfall_table(found, sources),
        Lines(title="what bounds it", rows=tuple(_bounds(found))),
        _layout_table(found),
        _sensitivity_table(found, sources, rows),
        Lines(title="sources", rows=sources.lines()),
    ]
    return Document(
        title=f"{question.subject}: {_ms(found.step_ns)}",
        sections=tuple(section for section in sections if section.rows),
    )


def _ms(ns: float) -> str:
    return f"{ns / _MS:,.4g} ms"


def _about(found: Explanation) -> Iterator[str]:
    question = found.question
    partition = question.candidate.partition
    chips = counted(partition.chips, "chip")
    yield (
        f"{question.model.name} ({question.precision} weights) on {chips} of "
        f"{question.system.name}: {partition.division}"
    )
    decodes = (
        f"{counted(question.requests, 'request')} decoding on {counted(partition.ranks, 'rank')}, "
    )
    yield f"{decodes if question.requests else ''}{question.load.in_words()}"
    if question.draft_tokens:
        yield (
            f"{question.drafts_in_words()}; {question.tokens_per_step:.3g} tokens a step are right"
        )
    yield from question.system.turned_in_words()
    yield question.steps_in_words()
    yield f"{found.tokens_per_s_per_chip:,.1f} tokens/s per chip"
    if found.interval is not None:
        low, high = found.interval.least * found.step_ns, found.interval.most * found.step_ns
        yield (
            f"interval {_ms(low)} to {_ms(high)}: between these ratios of measured to predicted "
            "TPOT lie four of five servers that no fit had seen"
        )
    for each in found.compared:
        predicted_ns = found.step_ns if each.predicted_ns is None else each.predicted_ns
        difference = signed_percent(each.ns / predicted_ns - 1)
        yield f"{each.what}: {_ms(each.ns)}, {difference} of the {_ms(predicted_ns)} here"
    yield from found.notes


def _waterfall_table(found: Explanation, sources: _Numbered) -> Table:
    step_ns = found.step_ns
    shown, small = _shown(found.terms, step_ns)
    reached = 0.0
    rows: list[tuple[object, ...]] = []
    for term in shown:
        reached += term.ns
        rows.append(
            (
                term.part,
                term.term,
                term.ns,
                term.ns / step_ns,
                reached,
                _amount(term),
                term.law,
                ", ".join(f"{name} {_value(figure)}" for name, figure in term.figures),
                sources.mark(term.figures),
            )
        )
    if small:
        ns = sum(term.ns for term in small)
        words = f"{len(small)} terms, each below {percent(LEAST_SHARE)}"
        rows.append(("others", words, ns, ns / step_ns, reached + ns, "", "", "", ""))
    columns: list[Column[tuple[object, ...]]] = [
        Column("part", align="left"),
        Column("term", align="left"),
        Column("ms", form=",.3f", scale=_MS),
        Column("of step", form=percent),
        Column("sum ms", form=",.3f", scale=_MS),
        Column("work"),
        Column("law", align="left"),
        Column("figures", align="left"),
        Column("source", align="left"),
    ]
    return table_of(columns, rows, title="waterfall: the terms of the step, which sum to it")


def _shown(
    terms: tuple[WaterfallTerm, ...], step_ns: float
) -> tuple[list[WaterfallTerm], list[WaterfallTerm]]:
    shown = [term for term in terms if abs(term.ns) >= LEAST_SHARE * step_ns]
    return shown, [term for term in terms if abs(term.ns) < LEAST_SHARE * step_ns]


def _amount(term: WaterfallTerm) -> str:
    if term.amount is None:
        return ""
    if term.unit == "times":
        return f"{term.amount:,.4g} x"
    value, unit = with_prefix(term.amount, _UNITS[term.unit])
    return f"{value} {unit.removesuffix('/s')}"


def _value(figure: Figure) -> str:
    value, unit = with_prefix(figure.value, figure.unit)
    if unit == figure.unit and figure.value < 1e6:
        value = number(figure.value)
    return f"{value} {unit}"


def _bounds(found: Explanation) -> Iterator[str]:
    step_ns = found.step_ns
    part, ns = next(iter(found.parts_ns.items()))
    engine = found.bound.get(part)
    waits = f", which waits for {engine}" if engine else ""
    yield f"longest part: {part}{waits}, {_ms(ns)} ({percent(ns / step_ns)} of the step)"
    yield "by what is waited for: " + ", ".join(
        f"{name} {percent(ns / step_ns)}"
        for name, ns in found.engines_ns.items()
        if abs(ns) >= LEAST_SHARE * step_ns
    )
    bounds = ", ".join(f"{part} for {engine}" for part, engine in found.bound.items())
    yield f"parts wait: {bounds}"
    helpful = [each for each in found.what_ifs[:_WHAT_IFS] if each.shorter_share > 0]
    if helpful:
        yield f"bottleneck: {helpful[0].as_bottleneck()}"
        yield f"what if: {'; '.join(each.in_words() for each in helpful)}"


def _layout_table(found: Explanation) -> Table:
    question = found.question
    own = OtherLayout(engines=1, question=question, step_ns=found.step_ns)
    shown = sorted([own, *found.layouts[:_LAYOUTS]], key=lambda each: each.step_ns)
    splits = {each.partition.attention_split for each in shown}
    attention: Column[OtherLayout] = Column(
        "attention", lambda each: each.partition.attention_split, align="left"
    )
    lnc: Column[OtherLayout] = Column("lnc", lambda each: each.partition.logical_core, "d")
    columns: list[Column[OtherLayout]] = [
        Column("", lambda each: "this" if each is own else "", align="left"),
        Column("engines", lambda each: each.engines, "d"),
        *(
            Column(name, lambda each, name=name: getattr(each.partition, name), "d")  # type: ignore[misc]
            for name in ("chips", "tp", "ep")
        ),
        *([lnc] if any(each.partition.logical_core for each in shown) else []),
        *([attention] if splits != {AttentionSplit.HEADS} else []),
        Column("requests each", lambda each: each.requests, ",d"),
        Column("step ms", lambda each: each.step_ns, ",.3f", scale=_MS),
        Column("change", lambda each: each.step_ns / found.step_ns - 1, signed_percent),
        Column("tok/s/chip", lambda each: found.rate_at(each.step_ns), ",.1f"),
    ]
    return table_of(
        columns,
        shown,
        title=f"layouts of the same requests on the same {question.chips} chips",
        foot=_change_in_words(found),
    )


def _change_in_words(found: Explanation) -> str:
    best = found.best_layout
    if best is None:
        return "no other layout of these chips holds the requests"
    changes = ", ".join(
        f"{part} {ns / _MS:+,.3f} ms"
        for part, ns in list(found.changes_ns.items())[:_CHANGES]
        if abs(ns) >= LEAST_SHARE * found.step_ns
    )
    partition = best.partition
    name = f"{best.engines} x {partition.chips} chips, {partition.division}"
    verdict = "the next best layout" if best.step_ns < found.step_ns else "no layout is faster; the"
    verdict = f"{verdict}{'' if best.step_ns < found.step_ns else ' next'}"
    return (
        f"{verdict} ({name}) changes the step by "
        f"{(best.step_ns - found.step_ns) / _MS:+,.3f} ms and tokens/s per chip by "
        f"{found.rate_at(best.step_ns) - found.tokens_per_s_per_chip:+,.1f}"
        + (f": {changes}" if changes else "")
    )


def _sensitivity_table(found: Explanation, sources: _Numbered, rows: int) -> Table:
    step_ns = found.step_ns

    def moved(each: Sensitivity) -> str:
        if each.low is None or each.high is None:
            return ""
        return f"{number(each.low)} .. {number(each.high)}"

    columns: list[Column[Sensitivity]] = [
        Column("figure or assumption", lambda each: each.name, align="left"),
        Column("is", lambda each: each.figure and number(each.figure.value)),
        Column("moved", moved),
        Column("step at low", lambda each: each.low_ns / step_ns - 1, signed_percent),
        Column("at high", lambda each: each.high_ns / step_ns - 1, signed_percent),
        Column("elasticity", lambda each: each.elasticity, "+.3f"),
        Column("range", lambda each: each.why, align="left"),
        Column(
            "source",
            lambda each: sources.mark([("", each.figure)]) if each.figure else "",
            align="left",
        ),
    ]
    left = len(found.sensitivities) - rows
    return table_of(
        columns,
        found.sensitivities[:rows],
        title="sensitivity: the step if a figure were another, the strongest first",
        foot=f"{left} weaker ones: --rows or --json" if left > 0 else "",
    )


def explain_data(found: Explanation) -> dict[str, Any]:
    """The explanation for programs, in base units."""
    question = found.question
    assumptions = question.assumptions
    return {
        "subject": question.subject,
        "model": question.model.name,
        "system": question.system.name,
        "precision": question.precision,
        "partition": question.candidate.partition,
        "requests": question.requests,
        "load": question.load.in_words(),
        "draft_tokens": question.draft_tokens,
        "draft_model": None if question.draft_model is None else question.draft_model.name,
        "tokens_per_step": question.tokens_per_step,
        "peak_loads": question.peak_loads,
        "calibration": assumptions.calibration.name,
        "overlap": assumptions.overlap.value,
        "routing": question.routing,
        "assumptions": question.system.turned_switches(),
        "step_ns": found.step_ns,
        "tokens_per_s_per_chip": found.tokens_per_s_per_chip,
        "interval_ns": None
        if found.interval is None
        else [found.interval.least * found.step_ns, found.interval.most * found.step_ns],
        "compared": found.compared,
        "notes": found.notes,
        "terms": [_term_data(term) for term in found.terms],
        "parts_ns": found.parts_ns,
        "engines_ns": found.engines_ns,
        "bound": found.bound,
        "what_ifs": found.what_ifs,
        "layouts": [
            {
                **{name: getattr(each, name) for name in ("engines", "partition", "requests")},
                "step_ns": each.step_ns,
                "tokens_per_s_per_chip": found.rate_at(each.step_ns),
            }
            for each in found.layouts
        ],
        "next_best_layout_changes_ns": found.changes_ns or None,
        "sensitivities": [_sensitivity_data(each) for each in found.sensitivities],
    }


def _term_data(term: WaterfallTerm) -> dict[str, Any]:
    rate = None
    if term.amount is not None and term.unit != "times" and term.ns > 0:
        rate = term.amount / term.ns * NS_PER_S
    return {
        **{name: getattr(term, name) for name in ("part", "term", "engine", "law", "ns")},
        "amount": term.amount,
        "unit": term.unit or None,
        "rate_per_s": rate,
        "figures": [_figure_data(name, figure) for name, figure in term.figures],
    }


def _figure_data(name: str, figure: Figure) -> dict[str, Any]:
    return {
        "name": name,
        **{field: getattr(figure, field) for field in ("value", "unit", "source", "assumed")},
    }


def _sensitivity_data(each: Sensitivity) -> dict[str, Any]:
    names = ("name", "low", "high", "low_ns", "high_ns", "elasticity", "why")
    return {
        **{name: getattr(each, name) for name in names},
        "figure": each.figure and _figure_data(each.name, each.figure),
    }
