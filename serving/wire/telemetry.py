"""What changes while a server runs: the engine's figures, and what has happened since others."""

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
    """The engine's figures of one moment. Totals count from its start.

    Seconds and joules are emulated unless named wall.

    Attributes:
        emulated_s: now, also between two steps; idle time is in it and in the joules.
        dilation: wall seconds per emulated second in the clock's epoch `clock_epoch`, counted from
            0, which began at `epoch_emulated_s`, by the wall at `epoch_unix_s`; all 0 where time is
            virtual.
        busy_s: in steps; by `lag_s` they ended late because the host could not keep up. `pause_s`,
            by which recovering from faults or moving experts held steps up, is not in it.
        compute_wall_s: of the wall, that the chips' computing and the step channel took.
        prompt_tokens: that were computed; those from a cache are not among them.
        requests_arrived: all since the start; `requests_running` and `requests_waiting` are in the
            ranks' schedulers at the last step. `requests_moved` were handed to other ranks.
        chips: of the partition; `chips_leased` of them are out of serving.
        chip_watts: of all chips, the mean of the last emulated seconds; `facility_watts` are at the
            utility's meter.
        empty_rank_steps: over all steps, the ranks that took part without a token.
        expert_imbalance: as in ExpertBalance.
        training_joules: that training jobs drew on leased chips beyond idle ones.
        stall: as in MachineState; `age_s` likewise.
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

    @property
    def stall_s(self) -> float:
        """Emulated seconds for which nothing is computed yet."""
        return 0.0 if self.stall is None else self.stall.left_s

    @property
    def stall_wall_s(self) -> float:
        """The wall time that they take."""
        return 0.0 if self.stall is None else self.stall.wall_left_s


KindT = TypeVar("KindT", bound=Struct)


def with_figures(kind: type[KindT], telemetry: Telemetry, **others: object) -> KindT:
    """A `kind` that has `telemetry`'s value in each field of the same name, but for `others`."""
    alike = set(kind.__struct_fields__) & set(Telemetry.__struct_fields__) - set(others)
    return kind(**{name: getattr(telemetry, name) for name in alike}, **others)


class EventKind(StrEnum):
    """What has happened; see the contract."""

    FAULT = "fault"
    LEASE = "lease"
    VERSION = "version"
    SLEEP = "sleep"
    DOOR = "door"
    ENGINE_GONE = "engine-gone"
    STALL = "stall"
    JOB = "job"


class MachineEvent(Plain, frozen=True, kw_only=True):
    """One change, numbered from 1 since the server's start.

    Attributes:
        emulated_s: when it happened, of a fault's stages; when it was seen, of all others. `unix_s`
            is the wall's time at which it was seen.
        words: one line.
        fault, lease, version, sleep: what it is about, as it is then; None for the other kinds.
        ranks_up: that served then; None for what is not about a fault.
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
