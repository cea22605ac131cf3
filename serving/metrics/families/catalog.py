"""All families of ours in their groups, in the order in which the guide lists them."""

from typing import Final

from serving.metrics.families.chips import CHIPS
from serving.metrics.families.door import DOOR
from serving.metrics.families.engine import ENGINE
from serving.metrics.families.family import Family
from serving.metrics.families.ingress import INGRESS
from serving.metrics.families.neuron import NEURON
from serving.metrics.families.partition import PARTITION

GROUPS: Final[dict[str, tuple[Family, ...]]] = {
    "The engine": ENGINE,
    "The partition": PARTITION,
    "Each chip": CHIPS,
    "The door": DOOR,
    "What clients make it hold": INGRESS,
    "neuron-monitor's": NEURON,
}
FAMILIES: Final = tuple(family for families in GROUPS.values() for family in families)
