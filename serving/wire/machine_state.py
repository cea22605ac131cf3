"""The whole machine between two steps, as the control API shows it: frozen, plain, strict JSON.

The engine's process makes it and the API's process hands it on, so both sides share this
definition. Fields are named as in `protos/ultraserve/v1/control.proto`, which says the same on the
wire. Emulated seconds count from the engine's start.
"""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from emulator.specs.fault import Fault, LinkTier
from emulator.specs.hbm_usage import StackUsage

Count = Annotated[int, Meta(ge=0)]
"""A number of things, or one of them by its number."""


REQUESTS_NAMED_MAX: Final = 64
"""Of one fault, that are named: a page of them; all are counted."""

SERVING: Final = "serving"
"""The phase of chips that no lease has."""

PhaseWord = Annotated[str, Meta(pattern="^(serving|draining|training|restoring|maintenance)$")]
"""A phase of `serving.policy.day_night.handover`; a test holds the two together."""

FOR_TRAINING: Final = "training"
FOR_MAINTENANCE: Final = "maintenance"
PurposeWord = Annotated[str, Meta(pattern=f"^({FOR_TRAINING}|{FOR_MAINTENANCE})$")]
"""What chips leave service for."""


class Plain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that travels as JSON; an unknown, missing or mistyped field is refused."""


class ChipHealth(StrEnum):
    """What a chip does with a command: answers, answers late, is silent, is gone."""

    UP = "up"
    SLOW = "slow"
    HUNG = "hung"
    LOST = "lost"


class FaultStage(StrEnum):
    """How far the engine is with a fault.

    PENDING: it has happened, and no step has met it yet. RECOVERING: the machine stands still for
    it. RECOVERED: every request that it touched goes on. FAILED: requests that it touched ended
    with an error. DEGRADED: requests go on, but the chip stays slow until it is healed.
    """

    PENDING = "pending"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    FAILED = "failed"
    HEALED = "healed"
    DEGRADED = "degraded"


class PartitionState(Plain, frozen=True, kw_only=True):
    """How the chips are divided; `dp` counts the ranks of `tp` chips."""

    chips: Count
    tp: Count
    dp: Count
    ep: Count
    lnc: Count
    first_chip: Count
    spares: Count


class CutLink(Plain, frozen=True, kw_only=True):
    """Lanes that a chip has lost, of those that it has in the tier."""

    tier: LinkTier
    lanes_cut: Count
    lanes: Count


class ChipState(Plain, frozen=True, kw_only=True):
    """One chip; numbered in the partition, spares after its chips.

    Attributes:
        rack: of the system; `tray` of the rack, `position` in the tray.
        slow_factor: its engines take this many times as long; 1 when it is not slow.
        spare: it stands by: no rank and no experts.
        cut_links: the tiers of which it has lost lanes.
        expert_slots: slots of all layers; `expert_slots_filled` of them hold an expert.
        phase: of the group that it is lent out with; "serving" for a chip that is in no lease.
    """

    chip: Count
    rack: Count
    tray: Count
    position: Count
    health: ChipHealth
    slow_factor: float
    spare: bool
    rank: Count | None
    stacks: tuple[StackUsage, ...]
    cut_links: tuple[CutLink, ...]
    expert_slots: Count
    expert_slots_filled: Count
    watts: float
    phase: PhaseWord = SERVING

    @property
    def hbm_used_bytes(self) -> int:
        """What all owners hold in all stacks."""
        return sum(stack.held_bytes for stack in self.stacks)

    @property
    def hbm_capacity_bytes(self) -> int:
        """The stacks that have not failed."""
        return sum(stack.capacity_bytes for stack in self.stacks if not stack.failed)


class RankState(Plain, frozen=True, kw_only=True):
    """One attention replica and its scheduler's queues; `version` numbers its weights."""

    rank: Count
    up: bool
    requests_running: Count
    requests_waiting: Count
    kv_blocks_used: Count
    kv_blocks: Count
    version: Count = 1


class RackState(Plain, frozen=True, kw_only=True):
    """One rack's switch trays."""

    rack: Count
    switch_trays_up: Count
    switch_trays: Count


class ExpertBalance(Plain, frozen=True, kw_only=True):
    """Tokens per chip, the most over the mean, in the window that balancing looks at.

    `imbalance` is None until a token was routed; the ones before and after the last rebalance are
    None when there was none. `moved_bytes` counts the weights that all rebalances moved.
    """

    imbalance: float | None
    imbalance_before: float | None
    imbalance_after: float | None
    rebalances: Count
    moved_bytes: Count


class Recovery(Plain, frozen=True, kw_only=True):
    """What it took until the engine served again.

    `wall_s` counts from the fault until the machine went on; up to now while it recovers.
    `requests_failed` ended with an error. `experts_reloaded` are slots that were filled again, from
    another copy or from the checkpoint. `moved` and `failed` name the requests, the first
    REQUESTS_NAMED_MAX of each.
    """

    emulated_ns: Count
    wall_s: float
    requests_moved: Count
    requests_failed: Count
    experts_reloaded: Count
    moved: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class FaultRecord(Plain, frozen=True, kw_only=True):
    """One fault that was injected, numbered from 1; `recovery` is None until it has ended.

    `survivable` and `reason` are as computed when the fault was injected.
    """

    number: Count
    fault: Fault
    injected_emulated_s: float
    survivable: bool
    reason: str
    stage: FaultStage
    recovery: Recovery | None
    healed_emulated_s: float | None


class FaultEvent(Plain, frozen=True, kw_only=True):
    """A fault has reached a stage; numbered from 1 since the engine's start.

    `fault` is the record as it was then, and `ranks_up` counts the ranks that served at that time.
    """

    number: Count
    emulated_s: float
    ranks_up: Count
    fault: FaultRecord


class StallState(Plain, frozen=True, kw_only=True):
    """Nothing is computed until `until_emulated_s`.

    Attributes:
        left_s: emulated seconds until then; `wall_left_s` is the wall time that they take.
        reason: what is waited for: one line.
    """

    until_emulated_s: float
    left_s: float
    wall_left_s: float
    reason: str


class TrainingTotals(Plain, frozen=True, kw_only=True):
    """What a training job has done on a lease's chips since they were handed to it, as it says.

    `joules` are all that the chips drew in `emulated_s` of the job, idle power and work.
    """

    steps: Count
    tokens: Count
    loss: float | None
    joules: float
    emulated_s: float
    watts: float
    hbm_bytes_per_chip: Count


class LeaseState(Plain, frozen=True, kw_only=True):
    """A group of chips that is, or was, lent out: whole ranks, numbered from 1.

    Attributes:
        phase: of the group; "serving" says that the lease has ended.
        reason: what it waits for, or how it ended: one line.
        since_emulated_s: when the phase began.
        until_emulated_s: when it ends at the latest (draining) or for certain (restoring); None
            where nobody knows.
        lost_chips: those of `chips` that have failed since the lease began.
        drained_requests: of the group's requests, those that ended within the grace time;
            `moved_requests` went on elsewhere.
        experts_moved: expert copies, each of one layer, that went to chips that stay, and back.
        bytes_links: of the timed model, between chips; `bytes_storage` came from the checkpoint.
        joules: what the group's chips drew while they changed hands, neither draining nor training;
            a part of the engine's energy.
        drain_s: emulated; so are the times that moving experts, vacating the chips, reading weights
            and warming up took.
        training: None until the job has said something.
        purpose: training, or maintenance: of such chips no job has any, and the machine does not
            call them back by itself.
    """

    number: Count
    chips: tuple[Count, ...]
    ranks: tuple[Count, ...]
    phase: PhaseWord
    reason: str
    since_emulated_s: float
    until_emulated_s: float | None
    lost_chips: tuple[Count, ...]
    drained_requests: Count
    moved_requests: Count
    experts_moved: Count
    bytes_links: Count
    bytes_storage: Count
    joules: float
    drain_s: float
    experts_s: float
    vacate_s: float
    restore_s: float
    warm_s: float
    training: TrainingTotals | None
    purpose: PurposeWord = FOR_TRAINING


class VersionState(Plain, frozen=True, kw_only=True):
    """One version of the weights.

    Attributes:
        number: from 1, the version that the engine started with.
        weights: its name in responses: the number, and the beginning of the weights' hash.
        published_emulated_s: when it was asked for.
        target: every block serves it, or will; one version is.
        ranks: that serve it now.
        failure: why it is not served although it was published; empty when nothing went wrong.
        bytes_storage: of the timed model, that chips have read to serve it; `read_s` is the
            emulated time that their blocks stood still for it, and `joules` what they drew in it,
            a part of the engine's energy.
    """

    number: Count
    weights: str
    weights_dir: str
    note: str
    published_emulated_s: float
    target: bool
    ranks: Count
    failure: str
    bytes_storage: Count
    read_s: float
    joules: float


class SleepState(Plain, frozen=True, kw_only=True):
    """Whether the engine sleeps, in vLLM's sense, and what the last time took.

    Attributes:
        asleep: of "weights" and "kv_cache", what is not in HBM; empty when the engine is awake.
        level: of the last sleep: 1 keeps the weights in the hosts' memory, 2 nowhere; 0: none yet.
        host_bytes: weights of the timed model that the hosts' memory holds meanwhile.
        sleep_s: emulated seconds that going to sleep took the last time; `wake_s` waking up, its
            parts together. `joules` are what the chips drew in both, a part of the engine's energy.
    """

    asleep: tuple[str, ...] = ()
    level: Count = 0
    host_bytes: Count = 0
    sleep_s: float = 0.0
    wake_s: float = 0.0
    joules: float = 0.0


class HostRatio(Plain, frozen=True, kw_only=True):
    """Wall seconds that this host needs for what takes the machine one emulated second of `load`.

    `chosen` says that the clock began with it.
    """

    load: str
    ratio: float
    chosen: bool = False

    @property
    def words(self) -> str:
        """One line."""
        ratio = f"{self.ratio:.3g}" if self.ratio < 1_000 else f"{self.ratio:,.0f}"
        chosen = " (chosen to begin with)" if self.chosen else ""
        return f"{self.load}: this host needs {ratio} wall seconds for an emulated one{chosen}"


class MachineState(Plain, frozen=True, kw_only=True):
    """Everything.

    Attributes:
        dilation: wall seconds per emulated second; 0 when time is virtual.
        model: what sets time, HBM and energy; `weights` make the tokens.
        routing: where expert choices come from.
        chips: the partition's, then its spares.
        faults: all since the start, in the order of their numbers.
        leases: those that go on, and the last ones that have ended, in the order of their numbers.
        versions: of the weights, in the order of their numbers.
        stall: why nothing is computed now, and how long; None while the machine is free to.
        age_s: wall seconds since the engine said so; above 0 where it has not answered since.
        clock_epoch: of the clock, from 0 on, in which `dilation` holds.
        host_ratios: what this host was measured to need; empty but for a clock that follows it.
    """

    emulated_s: float
    dilation: float
    steps: Count
    system: str
    model: str
    weights: str
    routing: str
    partition: PartitionState
    chip_watts: float
    facility_watts: float
    chips: tuple[ChipState, ...]
    ranks: tuple[RankState, ...]
    racks: tuple[RackState, ...]
    faults: tuple[FaultRecord, ...]
    expert_balance: ExpertBalance
    leases: tuple[LeaseState, ...] = ()
    versions: tuple[VersionState, ...] = ()
    sleep: SleepState = SleepState()
    stall: StallState | None = None
    age_s: float = 0.0
    clock_epoch: Count = 0
    host_ratios: tuple[HostRatio, ...] = ()
