"""The tables of families in deploy/guides/metrics.md, between its two marks.

`python -m serving.telemetry.families.guide_table` writes them; a test compares them.
"""

import sys
from pathlib import Path
from typing import Final

from serving.telemetry.families.batch import BATCH
from serving.telemetry.families.chips import CHIPS
from serving.telemetry.families.engine import ENGINE
from serving.telemetry.families.family import Family
from serving.telemetry.families.gateway import GATEWAY, INGRESS
from serving.telemetry.families.neuron import INSTANCE_LABELS, NEURON
from serving.telemetry.families.partition import PARTITION
from serving.telemetry.families.replicas import REPLICAS

GROUPS: Final[dict[str, tuple[Family, ...]]] = {
    "The engine": ENGINE,
    "The partition": PARTITION,
    "Each chip": CHIPS,
    "The gateway": GATEWAY,
    "What clients make it hold": INGRESS,
    "Batches": BATCH,
    "A service of replicas": REPLICAS,
    "neuron-monitor's": NEURON,
}
FAMILIES: Final = tuple(
    name for families in GROUPS.values() for family in families for name in family.names
)


GUIDE: Final = Path(__file__).parents[3] / "deploy" / "guides" / "metrics.md"
BEGIN: Final = "<!-- families: begin -->"
END: Final = "<!-- families: end -->"


def tables() -> str:
    """Every family, group by group, as Markdown."""
    parts = []
    for group, families in GROUPS.items():
        rows = "\n".join(_row(name) for family in families for name in family.names)
        head = "| name | type | unit | labels | what |\n|---|---|---|---|---|"
        parts.append(f"### {group}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def with_tables(guide: str) -> str:
    """The guide with present tables; raises ValueError when a mark is missing."""
    before, _, rest = guide.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{GUIDE.name} has {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _row(family: Family) -> str:
    own = [label for label in family.labels if label not in INSTANCE_LABELS]
    labels = ", ".join(f"`{label}`" for label in own)
    if len(own) < len(family.labels):
        labels = ", ".join(filter(None, ("the instance's", labels)))
    unit = "" if family.unit == "1" else family.unit
    return f"| `{family.sample}` | {family.kind} | {unit} | {labels} | {family.help} |"


if __name__ == "__main__":
    GUIDE.write_text(with_tables(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    print(GUIDE, file=sys.stderr)
