"""The checked-in dashboards as Grafana reads them: panels, queries, variables, events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.server_process import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
PATHS = sorted((GRAFANA / "generated").glob("*.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of a panel or an event; `now` asks for the newest values only."""

    panel: str
    expression: str
    now: bool = False


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def panels(dashboard: Any) -> list[Any]:
    """All but rows, which are headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def asked(dashboard: Any) -> Iterator[Asked]:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Asked(
                panel=panel["title"], expression=target["expr"], now=target.get("instant", False)
            )


def events(dashboard: Any) -> list[Any]:
    found: list[Any] = dashboard["annotations"]["list"]
    return found


def variables(dashboard: Any) -> dict[str, Any]:
    """By name, in the order in which they are filled in."""
    return {each["name"]: each for each in dashboard["templating"]["list"]}
