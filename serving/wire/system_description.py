"""Description of what is emulated, fixed while the server runs; see system.proto."""

from serving.wire.machine_state import Count, PartitionState, Plain


class SpecFigure(Plain, frozen=True, kw_only=True):
    """One number of the catalog in base units; `assumed`: without a published source."""

    name: str
    value: float
    unit: str
    source: str
    assumed: bool


class SpecSheet(Plain, frozen=True, kw_only=True):
    """One entry of the catalog."""

    name: str
    figures: tuple[SpecFigure, ...]


class RackDescription(Plain, frozen=True, kw_only=True):
    """One rack of the system; `chips` are the partition's and spare ones in it."""

    rack: Count
    trays: Count
    chips_per_tray: Count
    switch_trays: Count
    chips: tuple[Count, ...]


class SystemDescription(Plain, frozen=True, kw_only=True):
    """All that is fixed from the start; for `ultraserver` see `serving.settings`."""

    ultraserve_version: str
    vllm_version: str
    system: SpecSheet
    chip: SpecSheet
    model: SpecSheet
    weights: str
    routing: str
    topology: str
    switch_generation: str
    partition: PartitionState
    racks: tuple[RackDescription, ...]
    clock: str
    dilation: float
    calibration: str
    overlap: str
    kv_blocks: Count
    ultraserver: str
