"""The kinds of panels of the dashboards; each has a unit and a description.

A query is a pair of an expression and a legend. Green is good, orange asks for a look, red for a
hand; a chip's heat goes from blue to red.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.dashboards.expressions import picked

Query = tuple[str, str]
Steps = Sequence[tuple[float, str]]

SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH: Final = 24
"""Columns of Grafana's grid."""

CALM: Final = "green"
_FIGURE_ROWS: Final = 4
_GRAPH_ROWS: Final = 8
_STRIP_COLUMNS: Final = 12
_STRIP_POINTS: Final = 100
_CHIPS_PER_PAGE: Final = 36  # a tray's nine by four; 144 chips are four pages

PHASES: Final = (
    ("serving", "green"),
    ("draining", "yellow"),
    ("training", "blue"),
    ("restoring", "purple"),
    ("maintenance", "light-blue"),
    ("spare", "text"),
    ("out", "orange"),
    ("not up", "red"),
)
"""Phases of a chip, as the number that a state timeline shows."""


class _Common(Protocol):
    """Settings common to every kind of panel."""

    def title(self, title: str) -> "_Common": ...
    def description(self, description: str) -> "_Common": ...
    def datasource(self, datasource: models.DataSourceRef) -> "_Common": ...
    def span(self, w: int) -> "_Common": ...
    def height(self, h: int) -> "_Common": ...
    def unit(self, unit: str) -> "_Common": ...
    def targets(self, targets: list[Builder[Dataquery]]) -> "_Common": ...


Kind = TypeVar("Kind", bound=_Common)


def _labelled(
    panel: Kind,
    title: str,
    description: str,
    unit: str,
    size: tuple[int, int],
    queries: list[Query],
) -> Kind:
    """Apply the common settings; `size` is (columns, rows)."""
    panel.title(title).description(description).datasource(SOURCE).unit(unit)
    panel.span(size[0]).height(size[1])
    panel.targets(
        [target(query, letter) for query, letter in zip(queries, _letters(), strict=False)]
    )
    return panel


def _letters() -> list[str]:
    return [chr(code) for code in range(ord("A"), ord("Z") + 1)]


def target(query: Query, letter: str, *, now: bool = False) -> prometheus.Dataquery:
    """One query; `now` asks for a table of the newest values."""
    expression, legend = query
    made = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter)
    made.datasource(SOURCE)
    return made.instant().format(PromQueryFormat.TABLE) if now else made.range()


def limits(steps: Steps, first: str = CALM) -> builders.ThresholdsConfig:
    """Colours from each value on; `first` is that below all."""
    made = [models.Threshold(value=None, color=first)]
    made += [models.Threshold(value=value, color=color) for value, color in steps]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 12,
    stacked: bool = False,
    most: float | None = None,
    steps: Steps = (),
) -> timeseries.Panel:
    """Values over time, from 0 on."""
    panel = _labelled(
        timeseries.Panel(), title, description, unit, (width, _GRAPH_ROWS), list(queries)
    )
    panel.min(0).line_width(1).fill_opacity(60 if stacked else 8)
    panel.show_points(options.VisibilityMode.NEVER).span_nulls(False)
    if stacked:
        panel.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL))
    if most is not None:
        panel.max(most)
    if steps:
        panel.thresholds(limits(steps))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED)
        )
    panel.legend(
        common.VizLegendOptions()
        .display_mode(options.LegendDisplayMode.TABLE)
        .placement(options.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
    return panel.tooltip(tooltip.sort(options.SortOrder.DESCENDING))


def figure(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    width: int = 3,
    steps: Steps = (),
    below: str = "",
    decimals: int | None = None,
) -> stat.Panel:
    """The newest number of each instance, over its own course.

    `below` is the colour under the first step; without steps a figure is neither good nor bad.
    """
    panel = _labelled(stat.Panel(), title, description, unit, (width, _FIGURE_ROWS), [query])
    panel.thresholds(limits(steps, below or (CALM if steps else "text")))
    if decimals is not None:
        panel.decimals(decimals)
    panel.color_mode(options.BigValueColorMode.VALUE).graph_mode(options.BigValueGraphMode.AREA)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))


def strips(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    most: float | None = None,
) -> statushistory.Panel:
    """A strip per chip, coloured by its value: 144 chips at a glance."""
    panel = _labelled(
        statushistory.Panel(), title, description, unit, (_STRIP_COLUMNS, 10), [query]
    )
    panel.min(0).color_scheme(
        builders.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_YL_RD)
    )
    if most is not None:
        panel.max(most)
    panel.show_value(options.VisibilityMode.NEVER).row_height(0.9).col_width(1)
    # Grafana draws no strip at all where a point would have less than a pixel or so.
    panel.max_data_points(_STRIP_POINTS)
    panel.per_page(_CHIPS_PER_PAGE)
    return panel.data_links([chip_link()])


def phases(title: str, description: str, chips: str) -> statetimeline.Panel:
    """Each chip's phase over time, a row per chip; `chips` is a matcher."""
    state = "ultraserve_chip_state"
    not_up = picked(state, chips, 'health!="up"')
    either = [f"{not_up} * 0 + {len(PHASES) - 1}"]
    for at, (name, _) in enumerate(PHASES[:-1]):
        in_phase = picked(state, chips, f'phase="{name}"')
        either.append(f"{in_phase} * {at}")
    union = "\n  or ".join(either)
    expression = f"max by (instance, rack, chip) (\n  {union}\n)"
    legend = "chip {{chip}}, rack {{rack}}, {{instance}}"
    panel = _labelled(
        statetimeline.Panel(),
        title,
        description,
        "none",
        (_STRIP_COLUMNS, 10),
        [(expression, legend)],
    )
    panel.mappings([_phase_words()]).per_page(_CHIPS_PER_PAGE).merge_values(True)
    panel.show_value(options.VisibilityMode.NEVER).row_height(0.9)
    return panel.data_links([chip_link()])


def _phase_words() -> models.ValueMapping:
    words = {
        str(at): models.ValueMappingResult(text=name, color=color, index=at)
        for at, (name, color) in enumerate(PHASES)
    }
    return models.ValueMap(options=words)


def ranking(
    title: str, description: str, unit: str, query: Query, *, width: int = 12, steps: Steps = ()
) -> bargauge.Panel:
    """The newest values as bars."""
    panel = _labelled(bargauge.Panel(), title, description, unit, (width, _GRAPH_ROWS), [query])
    panel.min(0).thresholds(limits(steps)).display_mode(options.BarGaugeDisplayMode.GRADIENT)
    panel.orientation(options.VizOrientation.HORIZONTAL)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))


def heat(
    title: str, description: str, unit: str, expression: str, *, width: int = 12
) -> heatmap.Panel:
    """Counts of observations over time; the unit is that of the buckets' bounds."""
    panel = _labelled(
        heatmap.Panel(), title, description, unit, (width, _GRAPH_ROWS), [(expression, "{{le}}")]
    )
    panel.targets([target((expression, "{{le}}"), "A").format(PromQueryFormat.HEATMAP)])
    panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Spectral")
    return panel.color(colors.steps(64).reverse(False))


def listing(
    title: str,
    description: str,
    columns: Sequence[tuple[str, str, str]],
    *,
    rows: int = 10,
) -> table.Panel:
    """The newest values, a row per set of labels.

    Args:
        columns: (expression, heading, unit) of each value; a heading of "" hides the value of an
            expression that is asked for its labels.
    """
    panel = _labelled(table.Panel(), title, description, "none", (WIDTH, rows), [])
    letters = _letters()[: len(columns)]
    panel.targets(
        [
            target((each[0], ""), letter, now=True)
            for each, letter in zip(columns, letters, strict=True)
        ]
    )
    headings = {f"Value #{letter}": each[1] for each, letter in zip(columns, letters, strict=True)}
    away = {name: True for name, heading in headings.items() if not heading}
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True} | away,
                "renameByName": {name: heading for name, heading in headings.items() if heading},
            },
        )
    )
    for _, heading, unit in columns:
        if heading:
            properties = [models.DynamicConfigValue(id_val="unit", value=unit)]
            panel.override_by_name(heading, properties)
    links = [models.DynamicConfigValue(id_val="links", value=[chip_link(in_table=True).build()])]
    return panel.override_by_name("chip", links)


def chip_link(*, in_table: bool = False) -> builders.DashboardLink:
    """A link to the chip's own dashboard, at the same time."""
    of = "__data.fields.{}" if in_table else "__field.labels.{}"
    given = "&".join(f"var-{name}=${{{of.format(name)}}}" for name in ("instance", "rack", "chip"))
    return builders.DashboardLink("This chip").url(
        f"/d/ultraserve-chip?var-datasource=${{datasource}}&{given}&${{__url_time_range}}"
    )
