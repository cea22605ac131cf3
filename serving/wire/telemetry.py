"""What changes while a server runs: one look at the engine, and what has happened since another."""

from enum import StrEnum

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
    """One look. Totals count from the engine's start.

    Attributes:
        emulated_s: now, also between two steps; `dilation` as in MachineState.
        busy_s: emulated, in steps; by `lag_s` they ended late because the host could not keep up.
        prompt_tokens: that were computed; those from a cache are not among them.
        requests_arrived: all since the start; `requests_running` and `requests_waiting` are in the
            ranks' schedulers at the last step.
        expert_imbalance: as in ExpertBalance.
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
    chips_lent: Count
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


class Event(Plain, frozen=True, kw_only=True):
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
