"""A fleet of several models in words, as data and as a page."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import altair as alt

from loadgen.records.plain_number import counted
from reporting.charts import COLOURS, GREY, Row, TitledChart, chart_of, titled
from reporting.document import Document, FigureRow, Lines
from serving.analysis.plan.machine_packing import PackedMachines
from serving.analysis.plan.mix_outlook import FleetGrowth, fleet_growth
from serving.analysis.plan.mix_outlook_report import (
    mix_outlook_charts,
    mix_outlook_data,
    mix_outlook_sections,
    model_outlook_data,
)
from serving.analysis.plan.model_mix import MixedModel, ModelMix
from serving.analysis.plan.plan_bill import megawatts
from serving.analysis.plan.plan_bill_report import price_words
from serving.analysis.plan.plan_margins_report import margin_lines
from serving.analysis.plan.plan_report import (
    assumptions,
    check_rows,
    machine_words,
    plan_data,
    size_words,
)
from serving.analysis.plan.plan_spares_report import loss_line, loss_lines
from serving.analysis.steady_state.model_error import RANGE

_FREE: Final = "free"
_BAR_HEIGHT: Final = 30
_ASSUMED: Final = (
    "a request's model is random, by the shares, which are weights: each model has a random part "
    "of the traffic, at its own peak",
    "each replica or unit of pools lies within one machine, its chips next to each other or not; "
    "machines are the fewest for these sizes",
    "all models are at their peaks at one time, and have their nights in the same hours",
)


@dataclass(frozen=True, kw_only=True)
class ModelMixReport:
    """The answer in every form; `command` makes it again."""

    mix: ModelMix
    command: str

    @cached_property
    def _growth(self) -> FleetGrowth | None:
        return fleet_growth(self.mix)

    def answer(self) -> Document:
        """For the terminal."""
        mix = self.mix
        question = mix.models[0].plan.question
        shares = ", ".join(f"{each.name} {_percent(each.share)}" for each in mix.models)
        rate_per_s = sum(_rate_per_s(each) for each in mix.models)
        return Document(
            title=f"{shares} of the requests on {mix.system.name}, {question.slo}",
            verdict=f"  at the peak {rate_per_s:,.4g} requests/s, "
            f"{mix.rates.input_tokens_per_s:,.0f} prompt tokens/s, "
            f"{mix.rates.output_tokens_per_s:,.0f} output tokens/s",
            sections=(
                Lines(rows=tuple(self._fleet_lines())),
                Lines(title="packed onto machines:", rows=tuple(map(self._packed, mix.packing))),
                *(
                    Lines(
                        title=f"{each.name}, {_percent(each.share)} of the requests:",
                        rows=tuple(_model_lines(each)),
                    )
                    for each in mix.models
                ),
                *mix_outlook_sections(mix, self._growth),
                Lines(
                    title="assumed:", rows=(*_ASSUMED, *self._loss_assumed(), *self._assumptions())
                ),
            ),
        )

    def document(self) -> Document:
        """For a page, with the command."""
        return replace(self.answer(), command=self.command)

    def _machines(self, count: int) -> str:
        return machine_words(self.mix.models[0].plan, count)

    def _fleet_lines(self) -> Iterator[str]:
        mix = self.mix
        apart = mix.machines_apart
        yield (
            f"fleet: {self._machines(mix.machines)}; {mix.chips_in_service:,} of {mix.chips:,} "
            f"chips serve, {mix.free_chips:,} are free; "
            f"{apart:,} if each model had machines of its own"
        )
        if mix.machines_of_range is not None:
            ends = " to ".join(dict.fromkeys(map(self._machines, mix.machines_of_range)))
            yield f"{RANGE}:  {ends}, with each model's size at both ends of its steps' range"
        yield (
            f"power: {megawatts(mix.peak_drawn_watts)} drawn at the peak, "
            f"{megawatts(mix.mean_drawn_watts)} over the day; "
            f"{megawatts(mix.provisioned_watts)} provisioned (before cooling)"
        )
        cost = mix.day_cost
        if cost is None:
            yield "cost:  not priced (--price-hour or --price-chip-hour, --price-kwh)"
        else:
            yield (
                f"cost:  ${cost.dollars_per_hour:,.2f} an hour, "
                f"${cost.energy_dollars_per_hour:,.2f} of it energy, over the day; "
                f"{price_words(cost)}, of all models"
            )
        spare = mix.machines + 1
        yield (
            f"N+1:   {self._machines(spare)} "
            f"({megawatts(spare * mix.provisioned_watts_per_machine)} provisioned) so that one may "
            "fail"
        )
        yield (
            f"night: {mix.free_chip_hours:,} chip-hours a day freed by replicas that rest; "
            f"{mix.free_chips:,} chips bought serve at no hour"
        )

    def _packed(self, group: PackedMachines) -> str:
        models = zip(self.mix.models, group.replicas, strict=True)
        held = ", ".join(
            f"{count:,} x {each.name} ({counted(each.plan.fleet.replica_chips, 'chip')})"
            for each, count in models
            if count
        )
        return f"{self._machines(group.machines)} with {held}; {_free(group)}"

    def _loss_assumed(self) -> Iterator[str]:
        lost = self.mix.models[0].plan.question.lose
        if lost is not None:
            yield (
                f"one {lost} of the fleet is lost at a time; each model keeps the target after it, "
                "as if it were alone: where chips of several are lost, that each loses fewer of "
                "its own does no harm"
            )

    def _assumptions(self) -> Iterator[str]:
        """Those of the plans, with the models' names where they do not hold for all."""
        by_model = {each.name: assumptions(each.plan) for each in self.mix.models}
        for line in dict.fromkeys(line for lines in by_model.values() for line in lines):
            names = [name for name, lines in by_model.items() if line in lines]
            yield line if len(names) == len(by_model) else f"{', '.join(names)}: {line}"

    def fields(self) -> dict[str, Any]:
        """Everything, in base units; of each model the plan as if it were alone."""
        mix = self.mix
        return {
            "fleet": {
                "system": mix.system.name,
                "ultraservers": mix.machines,
                "ultraservers_apart": mix.machines_apart,
                "ultraservers_range_80": mix.machines_of_range,
                "ultraservers_with_spare": mix.machines + 1,
                "chips_bought": mix.chips,
                "chips_in_service": mix.chips_in_service,
                "free_chips": mix.free_chips,
                "free_chip_hours_per_day": mix.free_chip_hours,
                "provisioned_watts": mix.provisioned_watts,
                "peak_drawn_watts": mix.peak_drawn_watts,
                "mean_drawn_watts": mix.mean_drawn_watts,
                "day_cost": mix.day_cost,
            },
            "packing": [
                {
                    "ultraservers": group.machines,
                    "replicas": {
                        each.name: count
                        for each, count in zip(mix.models, group.replicas, strict=True)
                    },
                    "free_chips_of_each": group.free_chips,
                }
                for group in mix.packing
            ],
            "assumptions": (*_ASSUMED, *self._loss_assumed(), *self._assumptions()),
            **mix_outlook_data(mix, self._growth),
            "models": [
                {
                    "model": each.name,
                    "share": each.share,
                    "alone": plan_data(each.plan),
                    **model_outlook_data(each),
                }
                for each in mix.models
            ],
        }

    def figures(self) -> tuple[FigureRow, ...]:
        """The fleet's main figures, for spreadsheets."""
        mix = self.mix
        return (
            FigureRow(traffic_class="", figure="ultraservers", value=mix.machines),
            FigureRow(traffic_class="", figure="chips_in_service", value=mix.chips_in_service),
            FigureRow(traffic_class="", figure="peak_drawn", unit="W", value=mix.peak_drawn_watts),
        )

    def charts(self) -> tuple[TitledChart, ...]:
        """The chips of each kind of machine by model."""
        mix = self.mix
        names = [*(each.name for each in mix.models), _FREE]
        rows: list[Row] = []
        for number, group in enumerate(mix.packing, start=1):
            used = [
                count * each.plan.fleet.replica_chips
                for each, count in zip(mix.models, group.replicas, strict=True)
            ]
            machine = f"{number}: {counted(group.machines, 'machine')}"
            for order, (name, chips) in enumerate(
                zip(names, [*used, group.free_chips], strict=True)
            ):
                rows.append({"machine": machine, "chips": chips, "model": name, "order": order})
        colours = [*COLOURS[: len(mix.models)], GREY]
        bars = (
            chart_of(rows)
            .mark_bar()
            .encode(
                x=alt.X("chips:Q", title="chips of one machine"),
                y=alt.Y("machine:N", sort=None, title=None),
                color=alt.Color(
                    "model:N",
                    scale=alt.Scale(domain=names, range=colours),
                    legend=alt.Legend(orient="top", title=None),
                ),
                order="order:O",
            )
        )
        about = "Machines with the same replicas are one bar."
        height = _BAR_HEIGHT * len(mix.packing)
        chart = titled("the machines' chips by model", about, bars, height=height)
        return (chart, *mix_outlook_charts(mix, self._growth))


def _model_lines(each: MixedModel) -> Iterator[str]:
    plan = each.plan
    choice, question = plan.choice, plan.question
    check = choice.check
    yield f"traffic: {question.demand.in_words()}"
    yield from check_rows(
        size_words(check, question), check, question.sweep.assumptions.model_error
    )
    yield from loss_line(question, plan.kept_loss)
    if plan.kept_loss is not None:
        yield from loss_lines(question, replace(plan.kept_loss, machines=0))
    if plan.kept_loss is not None and plan.kept_loss.machines:
        yield f"at most {counted(each.most_of_machine, 'replica')} of it on one machine"
    if plan.margins is not None:
        headroom, *_ = margin_lines(plan.margins, question.demand.peak_rate_per_s)
        yield headroom
    if not choice.is_whole:
        yield "the search was cut short: fewer chips may keep the target too (--budget)"


def _rate_per_s(each: MixedModel) -> float:
    return each.plan.question.demand.peak_rate_per_s


def _free(group: PackedMachines) -> str:
    if not group.free_chips:
        return "none free"
    return f"{counted(group.free_chips, 'chip')} free{' on each' * (group.machines > 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
