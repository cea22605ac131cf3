"""Write the rules for the Prometheus operator from the files that Prometheus reads.

    python -m deploy.prometheus.generate         # or: make rules

kustomize cannot put a file's content below `spec` of another kind, so the result is checked in.
"""

from pathlib import Path
from typing import Final

import yaml  # type: ignore[import-untyped]

FOLDER: Final = Path(__file__).resolve().parent
GENERATED: Final = FOLDER.parent / "k8s/monitoring/prometheus-rule.yaml"

_FIRST_LINE: Final = "# Written by `make rules` from deploy/prometheus/rules: change those.\n"


def text() -> str:
    """The PrometheusRule with every group of every file of rules, in order."""
    paths = sorted((FOLDER / "rules").glob("*.yml"))
    groups = [
        group
        for path in paths
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ultraserve"},
        "spec": {"groups": groups},
    }
    written: str = yaml.safe_dump(rule, sort_keys=False, allow_unicode=True, width=100)
    return _FIRST_LINE + written


if __name__ == "__main__":
    GENERATED.write_text(text(), encoding="utf-8")
