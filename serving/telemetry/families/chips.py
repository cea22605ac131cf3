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
    "ultraserve_chip_state",
    "Always 1: where a chip stands, its rank (empty: none), its health (up, slow, hung, lost) "
    "and its phase (serving, draining, training, restoring, spare; out: lost, or of no rank).",
    labels=("chip", "rack", "tray", "rank", "health", "phase"),
)
POWER: Final = MeterFamily(
    "ultraserve_chip_power_watts",
    f"Modelled watts of a chip, {_MEAN}; of one that trains, what its job says. A "
    "lost one draws none.",
    field="watts",
)
JOULES: Final = MeterFamily(
    "ultraserve_chip_joules",
    "Modelled energy of a chip, idle and leased time included; all chips' are the "
    "engine's ultraserve_chip_energy_joules.",
    kind="counter",
    field="joules",
)
BUSY: Final = MeterFamily(
    "ultraserve_chip_busy_seconds",
    "Emulated seconds in which a chip computed, or waited for the experts of its group; "
    "serving alone.",
    kind="counter",
    field="busy_s",
)
ENGINE_BUSY: Final = Family(
    "ultraserve_chip_engine_busy_seconds",
    "Emulated seconds in which an engine of a chip was busy: tensor, vector, scalar, gpsimd, "
    "dma (HBM), collectives (links); serving alone.",
    kind="counter",
    labels=(*_CHIP, "engine"),
)
FLOPS: Final = MeterFamily(
    "ultraserve_chip_flops",
    "Floating-point operations of a chip's matrix products; serving alone.",
    kind="counter",
    field="flops",
)
HBM: Final = Family(
    "ultraserve_chip_hbm_bytes",
    "HBM that an owner holds on a chip: weights by group, kv, activations, training, ...",
    labels=(*_CHIP, "owner"),
)
HBM_CAPACITY: Final = Family(
    "ultraserve_chip_hbm_capacity_bytes",
    "HBM of a chip's stacks that have not failed.",
    labels=_CHIP,
)
HBM_TRAFFIC: Final = MeterFamily(
    "ultraserve_chip_hbm_traffic_bytes",
    "Bytes that a chip read from HBM and wrote there; serving alone.",
    kind="counter",
    field="hbm_bytes",
)
LINK: Final = MeterFamily(
    "ultraserve_chip_link_bytes",
    "Bytes that a chip sent over its links; serving alone.",
    kind="counter",
    field="link_bytes",
)
LINK_CAPACITY: Final = Family(
    "ultraserve_chip_link_capacity_bytes_per_second",
    "What a chip's links could send, all tiers together, as faults leave them.",
    unit="bytes/s",
    labels=_CHIP,
)
LINK_UTILIZATION: Final = MeterFamily(
    "ultraserve_chip_link_utilization_ratio",
    f"Bytes that a chip sent over what its links could have sent, {_MEAN}; {_METERED}.",
    field="link_utilization",
    metered=True,
)
UTILIZATION: Final = MeterFamily(
    "ultraserve_chip_utilization_ratio",
    f"Share of the time in which a chip was busy, {_MEAN}; {_METERED}.",
    field="utilization",
    metered=True,
)
HBM_UTILIZATION: Final = MeterFamily(
    "ultraserve_chip_hbm_utilization_ratio",
    f"HBM traffic of a chip over what its engines could have streamed, {_MEAN}; {_METERED}.",
    field="hbm_utilization",
    metered=True,
)
FIGURES: Final = (
    MeterFamily(
        "ultraserve_chip_dispatched_bytes",
        "Bytes of tokens that a chip sent to the experts of other chips; serving alone.",
        kind="counter",
        field="dispatched_bytes",
    ),
)
"""Figures of the ledger without a panel on Grafana's page of a chip."""
CHIPS: Final[tuple[Family, ...]] = (
    *(STATE, POWER, JOULES, BUSY, ENGINE_BUSY, FLOPS, HBM, HBM_CAPACITY, HBM_TRAFFIC),
    *(LINK, LINK_CAPACITY, LINK_UTILIZATION, UTILIZATION, HBM_UTILIZATION),
    *FIGURES,
)

METERS: Final = tuple(family for family in CHIPS if isinstance(family, MeterFamily))
