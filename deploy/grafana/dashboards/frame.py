"""The frame of all dashboards: variables, annotations, links, and one clock."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import RACKS, WINDOW, picked, total
from deploy.grafana.dashboards.panels import SOURCE

TAG: Final = "ultraserve"
CLOCK_NOTE: Final = (
    "Times, rates and watts are those of the emulated machine; where a figure is of the wall's "
    "clock its panel says so."
)

Panels = Sequence[Builder[models.Panel]]


class EventAnnotation(models.AnnotationQuery):
    """An event drawn over every graph; adds fields of Prometheus."""

    def __init__(self, name: str, color: str, expression: str, text: str) -> None:
        super().__init__(
            name=name, datasource=SOURCE, icon_color=color, expr=expression, hide=False
        )
        self._text = text

    def to_json(self) -> dict[str, object]:
        """Grafana's form."""
        return super().to_json() | {"titleFormat": self.name, "textFormat": self._text}


EVENTS: Final = (
    EventAnnotation(
        "Fault",
        "red",
        total(f"increase({picked('ultraserve_faults_by_kind_total')}[{WINDOW}])", "kind") + " > 0",
        "{{kind}} on {{instance}}",
    ),
    EventAnnotation(
        "Hand-over",
        "blue",
        total(f"increase({picked('ultraserve_handovers_total')}[{WINDOW}])") + " > 0",
        "a group of chips changed hands on {{instance}}",
    ),
    EventAnnotation(
        "Experts moved",
        "purple",
        total(f"increase({picked('ultraserve_expert_rebalances_total')}[{WINDOW}])") + " > 0",
        "experts were given new places on {{instance}}",
    ),
)


def framed(
    name: str, title: str, description: str, rows: Sequence[tuple[str, Panels]], *, chips: str = ""
) -> models.Dashboard:
    """A dashboard of titled rows of panels.

    Args:
        name: its uid is `ultraserve-NAME`, its file NAME.json.
        chips: "" without a choice of racks and chips, "racks" for racks, "many" for both, "one" for
            a single chip of a single instance.
    """
    made = builders.Dashboard(title).uid(f"ultraserve-{name}").tags([TAG]).editable()
    made.description(f"{description} {CLOCK_NOTE}")
    made.time("now-30m", "now").refresh("5s").timezone("browser")
    made.tooltip(models.DashboardCursorSync.CROSSHAIR)
    made.timepicker(builders.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m", "1h"]))
    made.variables(variables(chips))
    links = builders.DashboardLink("UltraServe").type(models.DashboardLinkType.DASHBOARDS)
    made.link(links.tags([TAG]).keep_time(True).include_vars(True).as_dropdown(False))
    for heading, panels in rows:
        made.with_row(builders.Row(heading))
        for panel in panels:
            made.with_panel(panel)
    built = made.build()
    built.annotations = models.AnnotationContainer(list_val=list(EVENTS))
    return numbered(built)


def numbered(dashboard: models.Dashboard) -> models.Dashboard:
    """Number the panels in order; links to a panel use the number."""
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
    return dashboard


def variables(chips: str) -> list[Builder[models.VariableModel]]:
    """The variables at the top of the page."""
    one = chips == "one"
    source = builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    made: list[Builder[models.VariableModel]] = [
        source,
        _choice("instance", "label_values(ultraserve_info, instance)", many=not one)
        .label("Instance")
        .description("An engine: the address that Prometheus scrapes, or its name in the targets."),
    ]
    if chips:
        query = f"label_values({picked('ultraserve_chip_state')}, rack)"
        made.append(_choice("rack", query, many=True).label("Rack"))
    if chips in {"many", "one"}:
        query = f"label_values({picked('ultraserve_chip_state', RACKS)}, chip)"
        chosen = _choice("chip", query, many=not one).label("Chip")
        made.append(chosen.description("Numbered in the partition, spares after its chips."))
    return made


def _choice(name: str, query: str, *, many: bool) -> builders.QueryVariable:
    made = builders.QueryVariable(name).datasource(SOURCE)
    made.query({"query": query, "refId": name})
    made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.sort(models.VariableSort.NATURAL_ASC).multi(many).include_all(many)
    if many:
        made.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return made
