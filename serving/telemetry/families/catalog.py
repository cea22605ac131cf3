"""All our families by group, in the guide's order."""

from typing import Final

from serving.telemetry.families.chips import CHIPS
from serving.telemetry.families.engine import ENGINE
from serving.telemetry.families.family import Family
from serving.telemetry.families.gateway import GATEWAY, INGRESS
from serving.telemetry.families.neuron import NEURON
from serving.telemetry.families.partition import PARTITION

GROUPS: Final[dict[str, tuple[Family, ...]]] = {
    "The engine": ENGINE,
    "The partition": PARTITION,
    "Each chip": CHIPS,
    "The gateway": GATEWAY,
    "What clients make it hold": INGRESS,
    "neuron-monitor's": NEURON,
}
FAMILIES: Final = tuple(
    name for families in GROUPS.values() for family in families for name in family.names
)
