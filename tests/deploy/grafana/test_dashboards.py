"""The checked-in dashboards: as their sources have them, complete, and of metrics that exist."""

import itertools
import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard
from packaging.version import Version

from deploy.grafana.generate import differing, texts
from serving.telemetry.families.family import Family
from serving.telemetry.families.guide_table import FAMILIES
from tests.deploy.grafana.dashboard_files import (
    GRAFANA,
    PATHS,
    asked,
    events,
    panels,
    read,
    variables,
)
from tests.deploy.grafana.template import VARIABLE, filled
from tests.deploy.grafana.vllm_dashboards import kept
from tests.e2e.server_process import ROOT

COLUMNS = 24
UID_LENGTH_MAX = 40  # Grafana's
BUILT_IN = {"__rate_interval": "1m", "__range": "30m"}
CLOCK = "ultraserve_emulated_seconds_total"

OF_PROMETHEUS = {"scrape_duration_seconds", "ALERTS"}
RECORDED = {
    rule["record"]
    for rules in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
    for group in yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}

dashboards = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def samples(family: Family) -> list[str]:
    """The names that a family's series have."""
    if family.kind == "histogram":
        return [f"{family.name}_{part}" for part in ("bucket", "count", "sum")]
    return [family.sample]


def samples_of_ours() -> set[str]:
    return {sample for family in FAMILIES for sample in samples(family)}


def samples_of_vllm() -> set[str]:
    """Of what vLLM's logger registers, with every ending that a kind of it may have."""
    spec = find_spec("vllm")  # its text: importing it takes ten seconds
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "v1/metrics/loggers.py").read_text(encoding="utf-8")
    names = re.findall(r'name="(vllm:\w+)"', text)
    assert len(names) > 30, "vLLM's logger is written in another way"
    endings = ("", "_total", "_bucket", "_count", "_sum")
    return {f"{name}{ending}" for name in names for ending in endings}


def expressions(dashboard: Any) -> list[str]:
    return [query.expression for query in asked(dashboard)] + [
        event["expr"] for event in events(dashboard)
    ]


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """What an expression selects, its variables filled in."""
    values = BUILT_IN | dict.fromkeys(("instance", "rack", "chip"), ".*")
    found = []

    def visit(node: promql_parser.Expr) -> bool:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            found.append(selector)
        return True

    promql_parser.walk(promql_parser.parse(filled(expression, values)), visit)
    return found


def test_what_is_checked_in_is_what_the_sources_make() -> None:
    assert differing() == []


def test_the_sources_make_the_same_text_every_time() -> None:
    assert texts() == texts()


def test_the_five_dashboards_are_there() -> None:
    assert [path.stem for path in PATHS] == ["chip", "day-night", "experts", "fleet", "serving"]


def test_no_two_dashboards_have_the_same_address_or_name() -> None:
    read_all = [read(path) for path in PATHS]

    for field in ("uid", "title"):
        assert len({each[field] for each in read_all}) == len(PATHS)
    assert all(len(each["uid"]) <= UID_LENGTH_MAX for each in read_all)


@dashboards
def test_grafanas_own_types_know_every_field(path: Path) -> None:
    written = read(path)
    for event in events(written):  # Prometheus's own two, which the types leave out
        assert (event.pop("titleFormat"), bool(event.pop("textFormat"))) == (event["name"], True)
    register_default_plugins()

    known = json.loads(json.dumps(Dashboard.from_json(written), cls=JSONEncoder))

    assert lost(written, known) == []


def lost(written: Any, known: Any, at: str = "") -> list[str]:
    """Where something that was written is missing or another; defaults may come on top."""
    if isinstance(written, dict) and isinstance(known, dict):
        return [
            place
            for key, value in written.items()
            for place in lost(value, known.get(key), f"{at}/{key}")
        ]
    if isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        return [
            place
            for number, pair in enumerate(zip(written, known, strict=True))
            for place in lost(*pair, f"{at}/{number}")
        ]
    return [] if written == known else [at]


@dashboards
def test_each_panel_says_what_it_shows_and_in_which_unit(path: Path) -> None:
    known = {value for name, value in vars(units).items() if name[0].isupper()}
    for panel in panels(read(path)):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in known or unit.startswith("si:"), f"{panel['title']}: {unit}"


@dashboards
def test_panels_have_numbers_of_their_own_and_do_not_cover_each_other(path: Path) -> None:
    all_panels = read(path)["panels"]
    places = [
        (panel["id"], x, y)
        for panel in all_panels
        for at in [panel["gridPos"]]
        for x, y in itertools.product(
            range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        )
    ]

    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    assert len({(x, y) for _, x, y in places}) == len(places)
    assert max(x for _, x, _ in places) < COLUMNS


@dashboards
def test_each_panel_asks_something_and_names_its_queries_apart(path: Path) -> None:
    for panel in panels(read(path)):
        names = [target["refId"] for target in panel["targets"]]
        assert names, panel["title"]
        assert len(set(names)) == len(names)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@dashboards
def test_every_variable_that_is_used_can_be_chosen(path: Path) -> None:
    dashboard = read(path)
    chosen = variables(dashboard)
    queries = [each["query"]["query"] for each in chosen.values() if each["type"] == "query"]
    used = {
        name
        for text in [*expressions(dashboard), *queries]
        for found in VARIABLE.finditer(text)
        for name in found.groups()
        if name
    }

    assert used - set(BUILT_IN) - set(chosen) == set()
    assert set(chosen) - used == {"datasource"}


@dashboards
def test_every_series_is_one_of_the_chosen_instances(path: Path) -> None:
    for expression in expressions(read(path)):
        for selector in selectors(expression):
            limited = {matcher.name for matcher in selector.matchers.matchers}
            assert "instance" in limited, f"{selector.name} in {expression}"


@dashboards
def test_no_expression_makes_up_an_answer_that_is_always_there(path: Path) -> None:
    assert [each for each in expressions(read(path)) if "vector(" in each] == []


@dashboards
def test_a_panel_that_goes_by_the_emulated_clock_says_so(path: Path) -> None:
    for panel in panels(read(path)):
        if any(CLOCK in target["expr"] for target in panel["targets"]):
            assert "emulated" in panel["description"].lower(), panel["title"]


@dashboards
def test_every_metric_that_is_named_exists(path: Path) -> None:
    named = {selector.name for each in expressions(read(path)) for selector in selectors(each)} | {
        found
        for variable in variables(read(path)).values()
        if variable["type"] == "query"
        for found in re.findall(r"label_values\((\w+)", variable["query"]["query"])
    }

    assert named - samples_of_ours() - samples_of_vllm() - RECORDED - OF_PROMETHEUS == set()


@dashboards
def test_every_label_that_is_named_is_one_of_its_metric(path: Path) -> None:
    labels = {sample: family.labels for family in FAMILIES for sample in samples(family)}
    for expression in expressions(read(path)):
        for selector in selectors(expression):
            if selector.name in labels:
                limited = {matcher.name for matcher in selector.matchers.matchers}
                allowed = {"instance", *labels[selector.name]}
                assert limited - allowed == set(), f"{selector.name} in {expression}"


@dashboards
def test_every_link_to_a_dashboard_leads_to_one_and_to_choices_that_it_has(path: Path) -> None:
    by_uid = {each["uid"]: each for each in map(read, PATHS)}
    found = re.findall(r'"url": "(/d/[^"]+)"', path.read_text(encoding="utf-8"))
    if path.stem in {"fleet", "experts"}:
        assert found
    for url in found:
        parts = urlsplit(re.sub(r"&\$\{__url_time_range\}$", "", url))
        target = by_uid[parts.path.removeprefix("/d/")]
        named = {name.removeprefix("var-") for name in parse_qs(parts.query)}
        assert named - set(variables(target)) == set()


def test_grafana_is_told_where_prometheus_and_the_dashboards_are() -> None:
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((provisioning / "dashboards/ultraserve.yml").read_text())[
        "providers"
    ]

    assert (source["type"], source["url"]) == ("prometheus", "$PROMETHEUS_URL")
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert (provider["type"], provider["options"]["path"]) == (
        "file",
        "/var/lib/grafana/dashboards/ultraserve",
    )


def test_the_compose_file_has_the_grafana_that_the_dashboards_are_made_for() -> None:
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8"))
    image = compose["services"]["grafana"]["image"]
    made_for = Version(version("grafana-foundation-sdk"))

    assert image.startswith(f"grafana/grafana:{made_for.major}.{made_for.minor}.")


def test_vllms_queries_are_those_of_the_vllm_that_is_installed() -> None:
    assert kept()["source"] == f"vllm {Version(version('vllm')).public}"
