"""The Kubernetes manifests are valid, restricted, and say what the server in them means."""

from pathlib import Path

import kubernetes_validate
import pytest

from serving.commands.serve_arguments import resolve_arguments
from serving.engine.deployment import resolve_deployment
from serving.server.gateway.http import probes
from tests.deploy.docker.image_file import named, stages
from tests.deploy.k8s.manifests import (
    Object,
    broken_restrictions,
    built,
    container,
    one,
    validate,
)
from tests.deploy.served_command import end_wall_s_max, gateway_options_of, served

OVERLAYS = ["k8s/overlays/small", "k8s/overlays/prefill-decode", "k8s/overlays/ultraserver"]


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return built(request.param)


def pod_of(objects: list[Object]) -> Object:
    found: Object = one(objects, "Deployment")["spec"]["template"]["spec"]
    return found


def test_every_object_is_what_its_schema_allows(objects: list[Object]) -> None:
    kinds = [each["kind"] for each in objects]

    for each in objects:
        validate(each)

    assert set(kinds) == {
        *("Namespace", "ServiceAccount", "ConfigMap", "Service", "Deployment"),
        *("PodDisruptionBudget", "NetworkPolicy"),
    }


def test_the_schemas_refuse_a_field_that_there_is_not(objects: list[Object]) -> None:
    deployment = one(objects, "Deployment")
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1

    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        validate(deployment)


def test_every_object_lies_in_the_namespace_that_refuses_unrestricted_pods(
    objects: list[Object],
) -> None:
    namespace = one(objects, "Namespace")["metadata"]

    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {each["metadata"]["namespace"] for each in objects if each["kind"] != "Namespace"} == {
        namespace["name"]
    }


def test_the_pod_keeps_to_the_restricted_profile(objects: list[Object]) -> None:
    pod = pod_of(objects)

    assert list(broken_restrictions(pod)) == []
    user = named(stages()[1], "USER")[0].value
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user


def test_a_pod_that_may_more_would_be_seen(objects: list[Object]) -> None:
    pod = pod_of(objects)
    del pod["containers"][0]["securityContext"]["capabilities"]
    pod["hostNetwork"] = True

    assert list(broken_restrictions(pod)) == ["hostNetwork", "engine: capabilities"]


def test_selectors_find_the_pods_and_no_client_needs_their_labels(objects: list[Object]) -> None:
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    policy = one(objects, "NetworkPolicy")["spec"]
    clients = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]

    for selector in (
        one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        one(objects, "Service")["spec"]["selector"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= labels
    assert clients == {"ultraserve/client": "true"}
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_the_command_is_one_that_the_server_takes_and_fits_the_machine(
    objects: list[Object], tmp_path: Path
) -> None:
    pod = pod_of(objects)
    engine = container(pod, "engine")
    values = one(objects, "ConfigMap")
    (source,) = engine["envFrom"]
    assert source["configMapRef"]["name"] == values["metadata"]["name"]

    args = served(engine["args"], values["data"])
    options = gateway_options_of(args, tmp_path / "keys.toml", {})
    settings, weights = resolve_arguments(args, {})
    machine = resolve_deployment(settings, weights).machine(0.9)  # refuses what does not fit

    assert machine.kv_tokens_per_rank > 0
    assert settings.chips == int(values["data"]["CHIPS"])
    assert options.settings.key_file is not None
    assert pod["terminationGracePeriodSeconds"] > end_wall_s_max(args)


def test_keys_are_mounted_from_a_secret_that_is_not_here(objects: list[Object]) -> None:
    pod = pod_of(objects)
    engine = container(pod, "engine")
    (volume,) = (each for each in pod["volumes"] if each["name"] == "keys")
    (mount,) = (each for each in engine["volumeMounts"] if each["name"] == "keys")
    args = served(engine["args"], one(objects, "ConfigMap")["data"])

    assert "Secret" not in {each["kind"] for each in objects}
    assert volume["secret"]["secretName"] == "ultraserve-keys"
    assert volume["secret"]["defaultMode"] & 0o022 == 0  # one that others can write is refused
    assert str(args.key_file) == f"{mount['mountPath']}/keys.toml"


def test_ports_and_probes_are_the_server_s(objects: list[Object]) -> None:
    engine = container(pod_of(objects), "engine")
    args = served(engine["args"], one(objects, "ConfigMap")["data"])
    ports = {each["name"]: each["containerPort"] for each in engine["ports"]}
    service = one(objects, "Service")["spec"]["ports"]

    assert ports == {"http": args.port, "grpc": args.grpc_port}
    assert {each["targetPort"] for each in service} == set(ports)
    for probe, path in (
        ("startupProbe", probes.STARTUP),
        ("readinessProbe", probes.READY),
        ("livenessProbe", probes.LIVE),
    ):
        assert engine[probe]["httpGet"] == {"path": path, "port": "http"}


def test_what_it_writes_to_is_there_and_large_enough(objects: list[Object]) -> None:
    pod = pod_of(objects)
    engine = container(pod, "engine")
    mounts = {each["mountPath"]: each["name"] for each in engine["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}

    assert {"/tmp", "/dev/shm"} <= set(mounts)
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    assert set(mounts.values()) == set(volumes)


def test_the_overlays_differ_in_their_partition() -> None:
    chips = [one(built(each), "ConfigMap")["data"]["CHIPS"] for each in OVERLAYS]
    names = {one(built(each), "ConfigMap")["metadata"]["name"] for each in OVERLAYS}

    assert chips == ["4", "20", "144"]
    assert len(names) == 3  # the hash in the name renews the pods
