"""Families of each chip; few values for each of at most 144, see the page's test."""

from dataclasses import dataclass
from typing import Final

from serving.telemetry.families.family import Family

_CHIP: Final = ("chip", "rack")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterFamily(Family):
    """A family with a value for each chip (`metered`: whose work is metered), `field` of its meters
    or of the ledger.
    """

    field: str
    labels: tuple[str, ...] = _CHIP
    metered: bool = False


_MEAN: Final = "mean of the last emulated seconds"
_METERED: Final = "none for a chip that trains, whose work is not metered, or is out"

STATE: Final = Family(
    name="ultraserve_chip_state",
    labels=("chip", "rack", "tray", "rank", "health", "phase"),
    help="Always 1: where a chip stands, its rank (empty: none), its health (up, slow, hung, lost) "
    "and its phase (serving, draining, training, restoring, spare; out: lost, or of no rank).",
)
POWER: Final = MeterFamily(
    name="ultraserve_chip_power_watts",
    field="watts",
    help=f"Modelled watts of a chip, {_MEAN}; of one that trains, what its job says. A "
    "lost one draws none.",
)
JOULES: Final = MeterFamily(
    name="ultraserve_chip_joules",
    kind="counter",
    field="joules",
    help="Modelled energy of a chip, idle and leased time included; all chips' are the "
    "engine's ultraserve_chip_energy_joules.",
)
BUSY: Final = MeterFamily(
    name="ultraserve_chip_busy_seconds",
    kind="counter",
    field="busy_s",
    help="Emulated seconds in which a chip computed, or waited for the experts of its group; "
    "serving alone.",
)
ENGINE_BUSY: Final = Family(
    name="ultraserve_chip_engine_busy_seconds",
    kind="counter",
    labels=(*_CHIP, "engine"),
    help="Emulated seconds in which an engine of a chip was busy: tensor, vector, scalar, gpsimd, "
    "dma (HBM), collectives (links); serving alone.",
)
FLOPS: Final = MeterFamily(
    name="ultraserve_chip_flops",
    kind="counter",
    field="flops",
    help="Floating-point operations of a chip's matrix products; serving alone.",
)
HBM: Final = Family(
    name="ultraserve_chip_hbm_bytes",
    labels=(*_CHIP, "owner"),
    help="HBM that an owner holds on a chip: weights by group, kv, activations, training, ...",
)
HBM_CAPACITY: Final = Family(
    name="ultraserve_chip_hbm_capacity_bytes",
    labels=_CHIP,
    help="HBM of a chip's stacks that have not failed.",
)
HBM_TRAFFIC: Final = MeterFamily(
    name="ultraserve_chip_hbm_traffic_bytes",
    kind="counter",
    field="hbm_bytes",
    help="Bytes that a chip read from HBM and wrote there; serving alone.",
)
LINK: Final = MeterFamily(
    name="ultraserve_chip_link_bytes",
    kind="counter",
    field="link_bytes",
    help="Bytes that a chip sent over its links; serving alone.",
)
LINK_CAPACITY: Final = Family(
    name="ultraserve_chip_link_capacity_bytes_per_second",
    unit="bytes/s",
    labels=_CHIP,
    help="What a chip's links could send, all tiers together, as faults leave them.",
)
LINK_UTILIZATION: Final = MeterFamily(
    name="ultraserve_chip_link_utilization_ratio",
    field="link_utilization",
    metered=True,
    help=f"Bytes that a chip sent over what its links could have sent, {_MEAN}; {_METERED}.",
)
UTILIZATION: Final = MeterFamily(
    name="ultraserve_chip_utilization_ratio",
    field="utilization",
    metered=True,
    help=f"Share of the time in which a chip was busy, {_MEAN}; {_METERED}.",
)
HBM_UTILIZATION: Final = MeterFamily(
    name="ultraserve_chip_hbm_utilization_ratio",
    field="hbm_utilization",
    metered=True,
    help=f"HBM traffic of a chip over what its engines could have streamed, {_MEAN}; {_METERED}.",
)
FIGURES: Final = (
    MeterFamily(
        name="ultraserve_chip_dispatched_bytes",
        kind="counter",
        field="dispatched_bytes",
        help="Bytes of tokens that a chip sent to the experts of other chips; serving alone.",
    ),
)
"""Figures of the ledger without a panel on Grafana's page of a chip."""
CHIPS: Final[tuple[Family, ...]] = (
    *(STATE, POWER, JOULES, BUSY, ENGINE_BUSY, FLOPS, HBM, HBM_CAPACITY, HBM_TRAFFIC),
    *(LINK, LINK_CAPACITY, LINK_UTILIZATION, UTILIZATION, HBM_UTILIZATION),
    *FIGURES,
)

METERS: Final = tuple(family for family in CHIPS if isinstance(family, MeterFamily))
