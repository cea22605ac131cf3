"""Write the dashboards' JSON from their sources.

    python -m deploy.grafana.generate            # or: make dashboards
    python -m deploy.grafana.generate --check    # says what differs, and ends with 1

Sources are `deploy/grafana/dashboards`, made with Grafana's SDK (a development dependency); Grafana
reads `deploy/grafana/generated`, checked in.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.dashboards import chip, day_night, experts, fleet, serving

GENERATED = Path(__file__).resolve().parent / "generated"
SOURCES = (fleet, serving, experts, day_night, chip)


def texts() -> Mapping[str, str]:
    """The text of each file by name; deterministic."""
    made = {}
    for source in SOURCES:
        dashboard = source.dashboard()
        name = str(dashboard.uid).removeprefix("ultraserve-")
        text = json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True)
        made[f"{name}.json"] = f"{text}\n"
    return made


def write() -> None:
    """Write every file, and delete those without a source."""
    wanted = texts()
    GENERATED.mkdir(exist_ok=True)
    for path in GENERATED.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (GENERATED / name).write_text(text, encoding="utf-8")


def differing() -> list[str]:
    """Names of files that differ from their sources, are missing, or are spare."""
    wanted = texts()
    found = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.glob("*.json")}
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def main() -> int:
    """Write, or check; returns the exit status."""
    parser = argparse.ArgumentParser(description="write the dashboards' JSON from their sources")
    parser.add_argument("--check", action="store_true", help="write nothing; say what differs")
    if not parser.parse_args().check:
        write()
        return 0
    for name in (names := differing()):
        print(f"{name} is not as its source has it: run make dashboards", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
