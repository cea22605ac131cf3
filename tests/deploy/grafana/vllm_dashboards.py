"""Queries of vLLM's own dashboards, from its source distribution, kept beside the tests.

    python -m tests.deploy.grafana.vllm_dashboards vllm-0.32.0.tar.gz

rewrites vllm_dashboards.json. The dashboards are vLLM's (Apache License 2.0) and not in its wheel;
only their expressions are kept, verbatim.
"""

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KEPT = Path(__file__).with_suffix(".json")
FOLDER = "examples/observability/"
LICENSE = "Apache-2.0, copyright contributors to the vLLM project"


def kept() -> dict[str, Any]:
    """Version, license, and each file's variables and queries."""
    loaded: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return loaded


def grafana_queries(dashboard: Any) -> Iterator[dict[str, str]]:
    """Every target of every panel, also within rows."""
    for panel in dashboard.get("panels", []):
        for target in panel.get("targets", []):
            if "expr" in target:
                yield {"panel": panel["title"], "expression": target["expr"]}
        yield from grafana_queries(panel)


def grafana_variables(dashboard: Any) -> Iterator[str]:
    """Queries of the variables."""
    for variable in dashboard["templating"]["list"]:
        query = variable.get("query")
        asked = query.get("query") if isinstance(query, dict) else query
        if asked and asked.startswith("label_values"):
            yield asked


def perses_queries(node: Any, panel: str = "") -> Iterator[dict[str, str]]:
    if isinstance(node, list):
        for each in node:
            yield from perses_queries(each, panel)
    if not isinstance(node, dict):
        return
    panel = node.get("display", {}).get("name", panel) if node.get("kind") == "Panel" else panel
    for key, value in node.items():
        shown = value.get("spec", {}).get("display", {}) if isinstance(value, dict) else {}
        named = shown.get("name", panel) if isinstance(shown, dict) else panel
        if key == "query" and isinstance(value, str):
            yield {"panel": panel, "expression": value.strip()}
        else:
            yield from perses_queries(value, named)


def read_file(name: str, text: str) -> dict[str, Any]:
    if name.endswith(".json"):
        dashboard = json.loads(text)
        variables = list(grafana_variables(dashboard))
        return {"variables": variables, "queries": list(grafana_queries(dashboard))}
    queries = perses_queries(yaml.safe_load(text)["spec"]["panels"])
    return {"variables": [], "queries": list(queries)}


def read_distribution(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as packed:
        names = [each for each in packed.getnames() if FOLDER in each]
        files = {}
        for name in sorted(names):
            if not re.search(r"(grafana.*\.json|perses/.*\.yaml)$", name):
                continue
            opened = packed.extractfile(name)
            assert opened is not None
            files[name.partition("/")[2]] = read_file(name, opened.read().decode())
    (version,) = re.findall(r"vllm-([0-9.]+)\.tar\.gz", archive.name)
    return {"source": f"vllm {version}", "license": LICENSE, "files": files}


if __name__ == "__main__":
    found = read_distribution(Path(sys.argv[1]))
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
