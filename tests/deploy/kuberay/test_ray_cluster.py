"""The KubeRay manifests: no cluster and no operator here, so what can be checked without them.

KubeRay's own schema (a custom resource definition) comes in no package, so a RayCluster's fields
are held against the list below, read from the reference of its API at version 1.6; its pod
templates are Kubernetes' own and are held against the schema of pods.
"""

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from serving.server.gateway.http import probes
from tests.deploy.k8s.manifests import (
    Object,
    broken_restrictions,
    built,
    container,
    one,
    validate,
)
from tests.deploy.served_command import end_wall_s_max, served, settings_of

OVERLAYS = ["kuberay/overlays/small", "kuberay/overlays/ultraserver"]

CLUSTER_FIELDS = {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "template"}
WORKER_FIELDS = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return built(request.param)


def spec_of(objects: list[Object]) -> Object:
    found: Object = one(objects, "RayCluster")["spec"]
    return found


def pods_of(objects: list[Object]) -> list[Object]:
    spec = spec_of(objects)
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def words_of(objects: list[Object]) -> list[str]:
    found: list[str] = container(pods_of(objects)[0]["spec"], "engine")["args"]
    return found


def waiting_script() -> str:
    """What the engine's container asks Ray before it starts the server, in Python."""
    engine = container(pods_of(built(OVERLAYS[0]))[0]["spec"], "engine")
    found: str = engine["command"][4].partition("<<'PY'\n")[2].partition("PY\n")[0]
    return found


def values_of(objects: list[Object]) -> dict[str, str]:
    return {**one(objects, "ConfigMap")["data"], "POD_IP": "10.0.0.7"}


def test_every_object_but_the_cluster_is_what_its_schema_allows(objects: list[Object]) -> None:
    for each in objects:
        if each["kind"] != "RayCluster":
            validate(each)

    assert {each["kind"] for each in objects} == {
        *("Namespace", "ServiceAccount", "ConfigMap", "Service", "NetworkPolicy", "RayCluster"),
    }


def test_the_cluster_has_fields_of_its_kind_and_pods_that_kubernetes_takes(
    objects: list[Object],
) -> None:
    cluster = one(objects, "RayCluster")
    spec = cluster["spec"]

    assert cluster["apiVersion"] == "ray.io/v1"
    assert set(spec) == CLUSTER_FIELDS
    assert set(spec["headGroupSpec"]) == HEAD_FIELDS
    for group in spec["workerGroupSpecs"]:
        assert set(group) == WORKER_FIELDS
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    for number, template in enumerate(pods_of(objects)):
        metadata = {**template["metadata"], "name": f"pod-{number}"}
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **_spec(template)})


def _spec(template: Object) -> Object:
    assert set(template) == {"metadata", "spec"}
    return {"spec": template["spec"]}


def test_pods_keep_to_the_restricted_profile(objects: list[Object]) -> None:
    assert [list(broken_restrictions(each["spec"])) for each in pods_of(objects)] == [[], []]


def test_names_and_images_are_those_that_kustomize_gave(objects: list[Object]) -> None:
    engine = container(pods_of(objects)[0]["spec"], "engine")
    images = {each["image"] for pod in pods_of(objects) for each in pod["spec"]["containers"]}

    assert engine["envFrom"] == [
        {"configMapRef": {"name": one(objects, "ConfigMap")["metadata"]["name"]}}
    ]
    assert images == {"ultraserve:0.1.0"}
    assert spec_of(objects)["rayVersion"] == version("ray")
    assert {each["spec"]["serviceAccountName"] for each in pods_of(objects)} == {
        one(objects, "ServiceAccount")["metadata"]["name"]
    }


def test_ray_start_takes_every_parameter() -> None:
    """KubeRay makes `ray start --NAME=VALUE` of them."""
    ray = Path(sys.executable).with_name("ray")
    told = subprocess.run([ray, "start", "--help"], check=True, capture_output=True, text=True)
    groups = [
        group
        for folder in OVERLAYS
        for spec in [spec_of(built(folder))]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    names = {name for group in groups for name in group["rayStartParams"]}

    assert "include-dashboard" in names
    assert [name for name in names if f"--{name}" not in told.stdout] == []


def test_every_ray_container_and_the_engine_have_the_token(objects: list[Object]) -> None:
    token = {"secretKeyRef": {"name": "ultraserve-ray-token", "key": "auth_token"}}

    for pod in pods_of(objects):
        for each in pod["spec"]["containers"]:
            values = {item["name"]: item for item in each["env"]}
            assert values["RAY_AUTH_MODE"]["value"] == "token"
            assert values["RAY_AUTH_TOKEN"]["valueFrom"] == token
    assert "Secret" not in {each["kind"] for each in objects}


def test_the_engine_shares_what_a_process_beside_ray_needs(objects: list[Object]) -> None:
    head = pods_of(objects)[0]["spec"]
    mounts = [
        {each["mountPath"]: each["name"] for each in container(head, name)["volumeMounts"]}
        for name in ("ray-head", "engine")
    ]

    assert head["containers"][0]["name"] == "ray-head"  # KubeRay starts Ray in the first one
    for path in ("/tmp", "/dev/shm"):
        assert mounts[0][path] == mounts[1][path]


def test_the_command_is_one_that_the_server_takes(objects: list[Object]) -> None:
    args = served(words_of(objects), values_of(objects))
    settings = settings_of(args)
    spec = spec_of(objects)
    nodes = 1 + sum(group["replicas"] for group in spec["workerGroupSpecs"])

    assert settings.ray_address == "10.0.0.7:6379"
    assert int(values_of(objects)["NODES"]) == nodes
    assert settings.chips % nodes == 0
    grace = pods_of(objects)[0]["spec"]["terminationGracePeriodSeconds"]
    assert grace > end_wall_s_max(args)


def test_ports_and_probes_are_the_server_s(objects: list[Object]) -> None:
    engine = container(pods_of(objects)[0]["spec"], "engine")
    args = served(words_of(objects), values_of(objects))
    service = one(objects, "Service")["spec"]

    assert {each["name"]: each["containerPort"] for each in engine["ports"]} == {
        "http": args.port,
        "grpc": args.grpc_port,
    }
    assert [engine[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe")] == [
        probes.STARTUP,
        probes.READY,
    ]
    assert engine["livenessProbe"]["httpGet"]["path"] == probes.LIVE
    assert service["selector"]["ultraserve/part"] == "engine"
    assert pods_of(objects)[0]["metadata"]["labels"]["ultraserve/part"] == "engine"


def test_ray_s_nodes_reach_each_other_and_nobody_else_does(objects: list[Object]) -> None:
    policy = one(objects, "NetworkPolicy")["spec"]
    nodes = {"podSelector": {"matchLabels": {"ray.io/cluster": "ultraserve"}}}

    assert policy["podSelector"]["matchLabels"] == {"ray.io/cluster": "ultraserve"}
    assert one(objects, "RayCluster")["metadata"]["name"] == "ultraserve"
    assert policy["ingress"][0] == {"from": [nodes]}
    assert [rule.get("ports") for rule in policy["ingress"][1:]] == [
        [{"port": "http"}, {"port": "grpc"}],
        [{"port": "http"}],
    ]
    assert policy["egress"][0] == {"to": [nodes]}
    assert {port["port"] for port in policy["egress"][1]["ports"]} == {53}


def test_the_engine_waits_until_every_node_is_there(tmp_path: Path) -> None:
    """The script of its command, where Ray cannot be reached at first.

    What it asks of Ray is asked of a real one in tests/deploy/guides/test_multi_node.py.
    """
    engine = container(pods_of(built(OVERLAYS[0]))[0]["spec"], "engine")
    program, flag, script, name = engine["command"][2:]
    programs = {
        "python": "cat > asked; test -e seen || { touch seen; exit 1; }",
        "ultraserve": 'echo started "$@"',
        "sleep": "echo waited",
    }
    for each, text in programs.items():
        (tmp_path / each).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / each).chmod(0o700)
    shell = shutil.which(program)
    assert shell is not None

    said = subprocess.run(
        [shell, flag, script, name, "serve", "--port=1 2"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert said.stdout == "waited\nstarted serve --port=1 2\n"
    assert (tmp_path / "asked").read_text() == waiting_script()
    compile(waiting_script(), "waits for nodes", "exec")
