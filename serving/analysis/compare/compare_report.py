"""A comparison of systems for a reader, as data and as charts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from emulator.power.efficiency import WATTS_PER_MEGAWATT, PowerBasis
from loadgen.records.plain_number import counted
from reporting.charts import TitledChart
from reporting.document import (
    Cell,
    Column,
    Document,
    Facts,
    FigureRow,
    Lines,
    Section,
    Table,
    table_of,
)
from reporting.numbers import four_digits, number
from serving.analysis.compare.compare import ComparedSystem, SystemComparison
from serving.analysis.compare.price_claims import (
    PriceFinding,
    hour_dollars_for,
    price_findings,
)
from serving.analysis.plan.plan_options import unit_words
from serving.analysis.plan.plan_report import plan_data

_MS_PER_S: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure of which less is better; `value` is None where it is not known."""

    name: str
    unit: str
    value: Callable[[ComparedSystem], float | None]
    scale: float = 1.0

    def in_words(self, value: float) -> str:
        """With its unit."""
        dollars = self.unit.startswith("$")
        shown = four_digits(value / self.scale)
        return f"${shown}{self.unit[1:]}" if dollars else f"{shown} {self.unit}".strip()


def _million_output_dollars(row: ComparedSystem) -> float | None:
    cost = row.plan.bill.day_cost
    return None if cost is None else cost.dollars_per_million_output


def _million_total_dollars(row: ComparedSystem) -> float | None:
    cost = row.plan.bill.day_cost
    return None if cost is None else cost.dollars_per_million_total


def _serving_dollars(row: ComparedSystem) -> float | None:
    cost = row.plan.bill.shared_day_cost
    return None if cost is None else cost.dollars_per_million_output


def _serving_watts(row: ComparedSystem) -> float:
    return row.serving_share * row.plan.bill.provisioned_watts


MEASURES: Final = (
    Measure(name="chips in service", unit="", value=lambda row: row.plan.fleet.chips_in_service),
    Measure(
        name="power provisioned",
        unit="MW",
        value=lambda row: row.plan.bill.provisioned_watts,
        scale=WATTS_PER_MEGAWATT,
    ),
    Measure(
        name="power drawn at the peak",
        unit="MW",
        value=lambda row: row.plan.bill.peak_drawn_watts,
        scale=WATTS_PER_MEGAWATT,
    ),
    Measure(
        name="power provisioned, chips in service alone",
        unit="MW",
        value=_serving_watts,
        scale=WATTS_PER_MEGAWATT,
    ),
    Measure(name="cost", unit="$ per million output tokens", value=_million_output_dollars),
    Measure(
        name="cost, chips in service alone",
        unit="$ per million output tokens",
        value=_serving_dollars,
    ),
    Measure(
        name="carbon",
        unit="gCO2 per million output tokens",
        value=lambda row: row.gco2_per_million_output,
    ),
)
_IN_VERDICT: Final = ("chips in service", "power provisioned", "cost", "carbon")


def best_of(
    measure: Measure, found: Sequence[ComparedSystem]
) -> list[tuple[float, ComparedSystem]]:
    """Systems whose figure is known, the least first; those that may miss the target only where
    none surely keeps it.
    """
    sure = [row for row in found if row.plan.choice.check.surely_meets]
    known = [(value, row) for row in sure or found if (value := measure.value(row)) is not None]
    return sorted(known, key=lambda each: each[0])


def _least_words(measure: Measure, found: Sequence[ComparedSystem]) -> str:
    order = best_of(measure, found)
    value = order[0][0]
    names = _least_names(order)
    words = f"{names}, {measure.in_words(value)}"
    higher = [each for each in order if each[0] > value]
    if higher and value > 0:
        second, row = higher[0]
        words += f"; next {row.name}, {second / value:.2f} times as much"
    return words


def _least_names(order: Sequence[tuple[float, ComparedSystem]]) -> str:
    """Of the least and those that equal it."""
    return " and ".join(row.name for value, row in order if value == order[0][0])


def _verdict(found: Sequence[ComparedSystem]) -> str:
    if not found:
        return "no system serves this"
    said = [
        f"{measure.name} {_least_names(order)} ({measure.in_words(order[0][0])})"
        for measure in MEASURES
        if measure.name in _IN_VERDICT and (order := best_of(measure, found))
    ]
    words = f"least: {'; '.join(said)}"
    cut = sum(not row.plan.choice.is_whole for row in found)
    if cut:
        words += f"; not settled: {cut:,} of {len(found):,} searches were cut short (--budget)"
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """A `ReportDocument` of a comparison; `model` and `slo` are its question's words."""

    comparison: SystemComparison
    model: str
    slo: str

    def document(self) -> Document:
        """For people: what is least first, then each system, those that cannot, and claims."""
        return Document(
            title=f"{self.model}, {self.slo}: systems side by side",
            subtitle=f"traffic: {self.comparison.traffic}",
            verdict=_verdict(self.comparison.found),
            sections=tuple(self._sections()),
        )

    def fields(self) -> object:
        """For programs, in base units."""
        return compare_data(self)

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: every known measure of every system."""
        return tuple(
            FigureRow(
                traffic_class=row.name,
                figure=measure.name,
                unit=measure.unit,
                value=value / measure.scale,
            )
            for row in self.comparison.found
            for measure in MEASURES
            if (value := measure.value(row)) is not None
        )

    def charts(self) -> tuple[TitledChart, ...]:
        """Bars of each measure that is known of a system."""
        from serving.analysis.compare.compare_chart import bar_charts

        return bar_charts(self.comparison.found, MEASURES)

    def _sections(self) -> Iterator[Section]:
        found = self.comparison.found
        if found:
            rows = [
                (measure.name, _least_words(measure, found))
                for measure in MEASURES
                if best_of(measure, found)
            ]
            yield Facts(title="the least of each:", rows=tuple(rows))
            yield _machine_table(found)
            yield _limit_table(found)
            yield _power_table(found)
            yield from _money_tables(self.comparison)
        if self.comparison.refusals:
            said = (
                f"{each.system}: {each.kind.value}: {each.reason}"
                for each in self.comparison.refusals
            )
            yield Lines(title="cannot:", rows=tuple(said))
        claims = price_findings(found)
        if claims:
            yield _claim_table(claims)
        yield Lines(title="assumed:", rows=tuple(_assumed_lines(self.comparison)))


def _machine_table(found: Sequence[ComparedSystem]) -> Table:
    def partition(row: ComparedSystem) -> str:
        check = row.plan.choice.check
        words = f"{check.replicas:,} x {unit_words(check.candidate, check.prefill)}"
        across = row.units_of_cluster
        return words + f", each across {across} machines" * (across > 1)

    def policy(row: ComparedSystem) -> str:
        check = row.plan.choice.check
        return "pools" if check.prefill is not None else str(check.prefill_policy)

    columns: list[Column[ComparedSystem]] = [
        Column("system", lambda row: row.name, align="left"),
        Column("machines", lambda row: row.machines, ",d"),
        Column("80 %", _range_words),
        Column("chips serve", lambda row: row.plan.fleet.chips_in_service, ",d"),
        Column("of", lambda row: row.plan.fleet.chips, ",d"),
        Column("weights", lambda row: row.plan.choice.check.precision, align="left"),
        Column("prefill policy", policy, align="left"),
        Column("replicas", partition, align="left"),
    ]
    return table_of(columns, found, title="what serves it:")


def _range_words(row: ComparedSystem) -> str | None:
    """Machines at the ends of the model's 80 % range."""
    if row.plan.range is None:
        return None
    return " to ".join(
        "none" if size is None else f"{row.plan.machines_for(size) * row.units_of_cluster:,}"
        for _, size in row.plan.range.ends()
    )


def _limit_table(found: Sequence[ComparedSystem]) -> Table:
    def reached(place: int) -> Callable[[ComparedSystem], float | None]:
        return lambda row: row.plan.choice.check.terms[place].reached_s

    def verdict(row: ComparedSystem) -> Cell:
        if row.plan.choice.check.surely_meets:
            return Cell(words="meets the target", tone="good")
        return Cell(words="does not surely meet it", tone="bad")

    def searched(row: ComparedSystem) -> str:
        choice = row.plan.choice
        words = "all sizes" if choice.is_whole else "cut short"
        return f"{words}, {counted(len(choice.tried), 'setting')} simulated"

    terms = found[0].plan.choice.check.terms
    columns: list[Column[ComparedSystem]] = [
        Column("system", lambda row: row.name, align="left"),
        *(
            Column(
                f"{term.name.upper()} p{term.percentile:g}",
                reached(place),
                four_digits,
                unit="ms",
                scale=1 / _MS_PER_S,
            )
            for place, term in enumerate(terms)
        ),
        Column("verdict", verdict, align="left"),
        Column("search", searched, align="left"),
    ]
    return table_of(columns, found, title="what it reaches, simulated:")


def _power_table(found: Sequence[ComparedSystem]) -> Table:
    def per_mw(basis: PowerBasis) -> Callable[[ComparedSystem], float]:
        return lambda row: next(
            each.output for each in row.plan.bill.per_megawatt if each.basis is basis
        )

    def megawatts(label: str, watts: Callable[[ComparedSystem], float]) -> Column[ComparedSystem]:
        return Column(label, watts, four_digits, unit="MW", scale=WATTS_PER_MEGAWATT)

    columns: list[Column[ComparedSystem]] = [
        Column("system", lambda row: row.name, align="left"),
        megawatts("provisioned", lambda row: row.plan.bill.provisioned_watts),
        megawatts("serving chips' part", _serving_watts),
        megawatts("drawn, peak", lambda row: row.plan.bill.peak_drawn_watts),
        megawatts("drawn, day", lambda row: row.plan.bill.mean_drawn_watts),
        *(Column(f"tok/s/MW {basis.value}", per_mw(basis), ",.0f") for basis in PowerBasis),
    ]
    foot = "output tokens at the peak over the megawatts of all machines bought"
    return table_of(columns, found, title="power:", foot=foot)


def _money_tables(comparison: SystemComparison) -> Iterator[Table]:
    """Dollars and carbon; none without a price list."""
    listed = comparison.terms.price_list
    if listed is None:
        return

    def source(row: ComparedSystem) -> str:
        hour = listed.machine_hours.get((row.name, comparison.terms.price_term))
        return "no price in the file" if hour is None else hour.source

    def machine_hour(row: ComparedSystem) -> float | None:
        hour = listed.machine_hours.get((row.name, comparison.terms.price_term))
        return None if hour is None else hour.value

    def dollars(
        label: str, value: Callable[[ComparedSystem], float | None]
    ) -> Column[ComparedSystem]:
        return Column(label, value, four_digits)

    columns: list[Column[ComparedSystem]] = [
        Column("system", lambda row: row.name, align="left"),
        dollars("$/h a machine", machine_hour),
        dollars("even at $/h", lambda row: break_even_dollars(row, comparison.found)),
        dollars("$/h", lambda row: row.dollars_per_hour),
        dollars("$/M output", _million_output_dollars),
        dollars("$/M total", _million_total_dollars),
        dollars("$/M output, serving chips", _serving_dollars),
        dollars("gCO2/M output", lambda row: row.gco2_per_million_output),
        Column("price", source, align="left"),
    ]
    yield table_of(
        columns,
        comparison.found,
        title=f"money and carbon over the day, {comparison.terms.price_term.value}:",
        foot="even at: a machine's hour at which the system costs what the cheapest other does",
    )


def break_even_dollars(row: ComparedSystem, found: Sequence[ComparedSystem]) -> float | None:
    """A machine's hour at which `row` costs what the cheapest other does; None without one."""
    others = [
        each.dollars_per_hour
        for each in found
        if each is not row and each.dollars_per_hour is not None
    ]
    return hour_dollars_for(row, min(others, default=None))


def _claim_table(claims: Sequence[PriceFinding]) -> Table:
    def even(each: PriceFinding) -> str:
        hours = f"{number(each.break_even_hours)} hours of {each.base.name}"
        dollars = each.break_even_hour_dollars
        return hours if dollars is None else f"${four_digits(dollars)} ({hours})"

    columns: list[Column[PriceFinding]] = [
        Column("claim", lambda each: each.claim.words, align="left"),
        Column("system", lambda each: each.cheaper.name, align="left"),
        Column("beside", lambda each: each.base.name, align="left"),
        Column("claimed", lambda each: each.claim.ratio, ".2f"),
        Column("here", lambda each: each.ratio, ".2f"),
        Column("", lambda each: each.verdict, align="left"),
        Column("true up to, an hour of a machine", even, align="left"),
    ]
    sources = dict.fromkeys(f"{each.claim.words}: {each.claim.source}" for each in claims)
    foot = (
        "ratios of dollars for the same tokens; hours of the base's machine leave energy out. "
        + ". ".join(sources)
    )
    return table_of(columns, claims, title="claims of price:", foot=foot)


def _assumed_lines(comparison: SystemComparison) -> Iterator[str]:
    yield (
        "modelled, not measured; each system is planned by itself, on the same arrivals, lengths "
        "and seeds; `ultraserve plan --system NAME` tells more of one"
    )
    each = ", ".join(f"{row.name} {row.budget_s:.3g} s" for row in comparison.found) or "none"
    yield (
        f"{comparison.terms.budget_s:g} s of search, one half divided evenly over the systems that "
        f"hold the model, the other by their partitions: {each}; the 80 % range beside it"
    )
    cut = [row.name for row in comparison.found if not row.plan.choice.is_whole]
    if cut:
        yield (f"searches that were cut short may find less in a longer --budget: {', '.join(cut)}")
    clusters = [row for row in comparison.found if row.units_of_cluster > 1]
    for row in clusters:
        yield (
            f"one {row.name} does not hold the model: replicas across "
            f"{counted(row.units_of_cluster, 'machine')}, by their network cards; pools of prefill "
            "and decode were not tried"
        )
    yield "machines are whole and bought for this demand alone, without a spare"
    for row in comparison.found:
        turned = row.unit.turned_switches()
        if turned:
            yield f"{row.name} read as {', '.join(turned)}"
    listed = comparison.terms.price_list
    if listed is None:
        yield "not priced (--prices FILE)"
        return
    for name, figure in (("energy", listed.kwh_dollars), ("grid", listed.grid_gco2_per_kwh)):
        if figure is None:
            yield f"{name}: not given, left out"
        else:
            yield f"{name}: {figure.value:g} {figure.unit} ({figure.source})"
    if comparison.found:
        yield f"the day: {comparison.found[0].plan.night.day.source}"


def compare_data(report: CompareReport) -> dict[str, Any]:
    """Everything, in base units, for JSON."""
    comparison = report.comparison
    terms, listed = comparison.terms, comparison.terms.price_list
    return {
        "question": {
            "model": report.model,
            "traffic": comparison.traffic,
            "slo": report.slo,
            "budget_s": terms.budget_s,
            "price_term": terms.price_term,
            "kwh_dollars": listed and listed.kwh_dollars,
            "grid_gco2_per_kwh": listed and listed.grid_gco2_per_kwh,
        },
        "least": {
            measure.name: {"system": order[0][1].name, "value": order[0][0]}
            for measure in MEASURES
            if (order := best_of(measure, comparison.found))
        },
        "systems": [_system_data(row, comparison) for row in comparison.found],
        "refusals": comparison.refusals,
        "price_claims": [_claim_data(each) for each in price_findings(comparison.found)],
    }


def _system_data(row: ComparedSystem, comparison: SystemComparison) -> dict[str, Any]:
    data = plan_data(row.plan)
    listed = comparison.terms.price_list
    hour = listed and listed.machine_hours.get((row.name, comparison.terms.price_term))
    return {
        "system": row.name,
        "machines": row.machines,
        "machines_of_cluster": row.units_of_cluster,
        "serving_provisioned_watts": _serving_watts(row),
        "machine_hour_dollars": hour,
        "break_even_machine_hour_dollars": break_even_dollars(row, comparison.found),
        "dollars_per_hour": row.dollars_per_hour,
        "gco2_per_million_output": row.gco2_per_million_output,
        "gco2_per_million_total": row.gco2_per_million_total,
        "search_budget_s": row.budget_s,
        "is_whole_search": row.plan.choice.is_whole,
        "assumptions": row.unit.turned_switches(),
        **{name: data[name] for name in ("plan", "range_80", "power")},
        "check": data["checks"]["plan"],
    }


def _claim_data(each: PriceFinding) -> dict[str, Any]:
    return {
        "claim": each.claim.words,
        "source": each.claim.source,
        "system": each.cheaper.name,
        "base": each.base.name,
        "claimed_ratio": each.claim.ratio,
        "ratio": each.ratio,
        "verdict": each.verdict,
        "break_even_machine_hour_dollars": each.break_even_hour_dollars,
        "break_even_machine_hours_of_base": each.break_even_hours,
    }
