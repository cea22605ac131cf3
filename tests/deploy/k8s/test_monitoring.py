"""What the Prometheus operator and Grafana are given: in step with deploy/prometheus and grafana.

The operator's own schemas (custom resource definitions) come in no package, so what is checked of
its objects is what they say, not every field's name.
"""

import json
import re
from itertools import chain

import pytest
import yaml

from deploy.prometheus import generate
from tests.deploy.k8s.manifests import DEPLOY, Object, built, one, validate

MONITORING = "k8s/monitoring"
APPLIED_BYTES_MAX = 262_144
"""Of all annotations of an object, where `kubectl apply` notes down the whole of it."""
ENGINES = {
    "k8s/overlays/small": ("Deployment", ("spec",)),
    "kuberay/overlays/small": ("RayCluster", ("spec", "headGroupSpec")),
}
SCRAPED = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))


@pytest.fixture
def objects() -> list[Object]:
    return built(MONITORING)


def endpoint_of(objects: list[Object]) -> Object:
    (found,) = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert isinstance(found, dict)
    return found


def camel(name: str) -> str:
    """A setting of Prometheus as the operator writes it."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def test_the_rules_are_those_of_prometheus_s_own_files(objects: list[Object]) -> None:
    files = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
    groups = chain.from_iterable(yaml.safe_load(path.read_text())["groups"] for path in files)

    assert generate.GENERATED.read_text(encoding="utf-8") == generate.text(), "run make rules"
    assert one(objects, "PrometheusRule")["spec"]["groups"] == list(groups)


@pytest.mark.parametrize("folder", ENGINES)
def test_the_engine_of_a_folder_is_scraped_and_known_by_the_job_of_the_alerts(
    objects: list[Object], folder: str
) -> None:
    kind, path = ENGINES[folder]
    pod = one(built(folder), kind)
    for name in path:
        pod = pod[name]
    labels = pod["template"]["metadata"]["labels"]
    ports = [
        port["name"]
        for container in pod["template"]["spec"]["containers"]
        for port in container.get("ports", [])
    ]
    (selector,) = one(objects, "PodMonitor")["spec"]["selector"]["matchExpressions"]
    endpoint = endpoint_of(objects)

    assert selector["operator"] == "In"
    assert labels[selector["key"]] in selector["values"]
    assert ports.count(endpoint["port"]) == 1
    assert endpoint["relabelings"] == [
        {"targetLabel": "job", "replacement": SCRAPED["scrape_configs"][0]["job_name"]}
    ]
    policy = one(built(folder), "NetworkPolicy")["spec"]["ingress"][-1]
    assert policy["ports"] == [{"port": endpoint["port"]}]


def test_it_scrapes_as_often_and_drops_what_prometheus_s_own_configuration_drops(
    objects: list[Object],
) -> None:
    endpoint = endpoint_of(objects)
    (job,) = SCRAPED["scrape_configs"]
    times = [SCRAPED["global"][name] for name in ("scrape_interval", "scrape_timeout")]

    assert [endpoint["interval"], endpoint["scrapeTimeout"]] == times
    assert endpoint["path"] == job["metrics_path"]
    assert endpoint["metricRelabelings"] == [
        {camel(name): value for name, value in each.items()}
        for each in job["metric_relabel_configs"]
    ]


def test_each_dashboard_is_a_config_map_that_grafana_s_side_car_finds(
    objects: list[Object],
) -> None:
    maps = [each for each in objects if each["kind"] == "ConfigMap"]
    held = {name: text for each in maps for name, text in each["data"].items()}
    files = {path.name: path.read_text() for path in DEPLOY.glob("grafana/generated/*.json")}

    assert held == files
    for each in maps:
        validate(each)
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each).encode()) < APPLIED_BYTES_MAX


def test_what_works_without_the_operator_needs_nothing_of_it(objects: list[Object]) -> None:
    of_operator = {"PodMonitor", "PrometheusRule"}

    for folder in ("k8s/overlays/small", "k8s/overlays/ultraserver", *ENGINES):
        assert of_operator.isdisjoint(each["kind"] for each in built(folder))
    assert of_operator <= {each["kind"] for each in objects}
    assert {each["metadata"]["namespace"] for each in objects} == {"ultraserve"}
