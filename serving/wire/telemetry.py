"""Figures of the engine, and events, that change while a server runs."""

from enum import StrEnum
from typing import TypeVar

from msgspec import Struct, field

from serving.wire.machine_state import (
    Count,
    FaultRecord,
    LeaseState,
    Plain,
    SleepState,
    StallState,
    VersionState,
)


class Telemetry(Plain, frozen=True, kw_only=True):
    """The engine's figures of one moment; see watch.proto. Totals count from its start.

    Seconds and joules are emulated unless named wall, and include idle time. Watts are means of the
    last emulated seconds. The clock's epoch is 0 where time is virtual.
    """

    emulated_s: float
    dilation: float
    steps: Count
    busy_s: float
    lag_s: float
    prompt_tokens: Count
    output_tokens: Count
    requests_arrived: Count
    requests_running: Count
    requests_waiting: Count
    kv_blocks_used: Count
    kv_blocks: Count
    chips: Count
    chips_up: Count
    chips_leased: Count = field(name="chips_lent")
    ranks: Count
    ranks_up: Count
    chip_watts: float
    facility_watts: float
    chip_joules: float
    facility_joules: float
    faults: Count
    expert_imbalance: float | None
    stall: StallState | None = None
    age_s: float = 0.0
    lagging_steps: Count
    compute_wall_s: float
    pause_s: float
    provisioned_watts: float
    requests_moved: Count
    empty_rank_steps: Count
    expert_rebalances: Count
    expert_moved_bytes: Count
    model_version: Count
    rollout_blocks_pending: Count
    handovers: Count
    handover_bytes: Count
    handover_joules: float
    training_tokens: Count
    training_joules: float
    clock_epoch: Count = 0
    epoch_emulated_s: float = 0.0
    epoch_unix_s: float = 0.0
    kv_transfers: Count = 0
    kv_transfers_failed: Count = 0
    kv_transfer_bytes: Count = 0
    kv_transfer_joules: float = 0.0
    kv_transfer_s: float = 0.0

    @property
    def stall_s(self) -> float:
        """Emulated seconds until computing goes on."""
        return 0.0 if self.stall is None else self.stall.left_s

    @property
    def stall_wall_s(self) -> float:
        """The same in wall time."""
        return 0.0 if self.stall is None else self.stall.wall_left_s


KindT = TypeVar("KindT", bound=Struct)


def with_figures(kind: type[KindT], telemetry: Telemetry, **others: object) -> KindT:
    """A `kind` with `telemetry`'s values in fields of the same name, and `others`."""
    alike = set(kind.__struct_fields__) & set(Telemetry.__struct_fields__) - set(others)
    return kind(**{name: getattr(telemetry, name) for name in alike}, **others)


class EventKind(StrEnum):
    """Kinds of events; see the contract."""

    FAULT = "fault"
    LEASE = "lease"
    VERSION = "version"
    SLEEP = "sleep"
    DOOR = "door"
    ENGINE_GONE = "engine-gone"
    STALL = "stall"
    JOB = "job"


class MachineEvent(Plain, frozen=True, kw_only=True):
    """One change, numbered from 1 since the server's start; see watch.proto. Unrelated fields are
    None; `ranks_up` for all but faults.
    """

    number: Count
    emulated_s: float
    unix_s: float
    kind: EventKind
    words: str
    fault: FaultRecord | None = None
    lease: LeaseState | None = None
    version: VersionState | None = None
    sleep: SleepState | None = None
    ranks_up: Count | None = None
