"""The rules and unit tests of deploy/prometheus, as data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.prometheus_server import DEPLOYED

RULE_FILES = sorted((DEPLOYED / "rules").glob("*.yml"))
UNIT_TESTS = sorted((DEPLOYED / "tests").glob("*_test.yml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRule:
    """A recording rule or an alert, with the labels that it adds."""

    name: str
    alert: bool
    expression: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]


def written_rules() -> list[WrittenRule]:
    return [
        WrittenRule(
            name=rule.get("alert") or rule["record"],
            alert="alert" in rule,
            expression=rule["expr"],
            labels=tuple(sorted(rule.get("labels", {}).items())),
            annotations=tuple(sorted(rule.get("annotations", {}).items())),
        )
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def unit_tests(path: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load(path.read_text())["tests"]
