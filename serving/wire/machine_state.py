"""The whole machine between two steps, as the control API shows it: frozen, plain, strict JSON.

Made by the engine's process and passed on by the API's. The messages of `protos/ultraserve/v1` have
and document the same fields. Emulated seconds count from the engine's start.
"""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from emulator.specs.fault import Fault, LinkTier
from emulator.specs.hbm_usage import StackUsage

Count = Annotated[int, Meta(ge=0)]
"""A number of things, or one of them by its number."""


REQUESTS_NAMED_MAX: Final = 64
"""Requests named per fault: a page of them; all are counted."""

SERVING: Final = "serving"
"""The phase of chips without a lease."""

PhaseWord = Annotated[str, Meta(pattern="^(serving|draining|training|restoring|maintenance)$")]
"""A phase of `serving.policy.day_night.handover`; a test compares them."""

FOR_TRAINING: Final = "training"
FOR_MAINTENANCE: Final = "maintenance"
PurposeWord = Annotated[str, Meta(pattern=f"^({FOR_TRAINING}|{FOR_MAINTENANCE})$")]
"""Why chips leave service."""


class Plain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that travels as JSON; unknown, missing and mistyped fields are refused."""


class ChipHealth(StrEnum):
    """A chip's reaction to a command: answers, answers late, is silent, is gone."""

    UP = "up"
    SLOW = "slow"
    HUNG = "hung"
    LOST = "lost"


class FaultStage(StrEnum):
    """The engine's progress with a fault; see fault.proto."""

    PENDING = "pending"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    FAILED = "failed"
    HEALED = "healed"
    DEGRADED = "degraded"


class PartitionState(Plain, frozen=True, kw_only=True):
    """Division of the chips; `dp` counts the ranks of `tp` chips.

    `attention_split`: of requests that decode, over a chip's logical cores: heads, batch, sequence.
    """

    chips: Count
    tp: Count
    dp: Count
    ep: Count
    lnc: Count
    first_chip: Count
    spares: Count
    attention_split: str


class CutLink(Plain, frozen=True, kw_only=True):
    """Lanes that a chip has lost, of those in the tier."""

    tier: LinkTier
    lanes_cut: Count
    lanes: Count


class ChipState(Plain, frozen=True, kw_only=True):
    """One chip; numbered in the partition, spares after its chips."""

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
        """Of all owners in all stacks."""
        return sum(stack.held_bytes for stack in self.stacks)

    @property
    def hbm_capacity_bytes(self) -> int:
        """Of the stacks that have not failed."""
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
    """Tokens per chip, the most over the mean, in the balancing window."""

    imbalance: float | None
    imbalance_before: float | None
    imbalance_after: float | None
    rebalances: Count
    moved_bytes: Count


class Recovery(Plain, frozen=True, kw_only=True):
    """Cost of a recovery; up to now while it lasts."""

    emulated_ns: Count
    wall_s: float
    requests_moved: Count
    requests_failed: Count
    experts_reloaded: Count
    moved: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class FaultRecord(Plain, frozen=True, kw_only=True):
    """One injected fault; `recovery` is None until the machine has met it."""

    number: Count
    fault: Fault
    injected_emulated_s: float
    survivable: bool
    reason: str
    stage: FaultStage
    recovery: Recovery | None
    healed_emulated_s: float | None


class FaultEvent(Plain, frozen=True, kw_only=True):
    """A fault has reached a stage, numbered from 1 since the engine's start. `fault` and
    `ranks_up`, the ranks that served, are as of then.
    """

    number: Count
    emulated_s: float
    ranks_up: Count
    fault: FaultRecord


class StallState(Plain, frozen=True, kw_only=True):
    """No computing until `until_emulated_s`."""

    until_emulated_s: float
    left_s: float
    wall_left_s: float
    reason: str


class TrainingTotals(Plain, frozen=True, kw_only=True):
    """A training job's own totals on a lease's chips.

    `tokens` and `joules` are its chips' share of the job's; `emulated_s` the job's time, beside the
    `lag_s` in which its chips waited for the host. Of `steps` and `tokens` the host has computed
    `computed_steps` and `computed_tokens`: as many, unless the job is fast-forwarded.
    """

    steps: Count
    tokens: Count
    loss: float | None
    joules: float
    emulated_s: float
    watts: float
    hbm_bytes_per_chip: Count
    lag_s: float = 0.0
    computed_steps: Count = 0
    computed_tokens: Count = 0

    @property
    def trained_share(self) -> float | None:
        """What its chips have trained of what they would have without lag; None before a step."""
        return share_without_lag(self.emulated_s, self.lag_s)

    @property
    def computed_share(self) -> float | None:
        """What the host has computed of what its chips have trained; None before a step."""
        return self.computed_tokens / self.tokens if self.tokens else None


def share_without_lag(emulated_s: float, lag_s: float) -> float | None:
    """What a job that passed `emulated_s` and was late by `lag_s` did of what it would have done in
    both; None before it passed any.
    """
    passed_s = emulated_s + lag_s
    return emulated_s / passed_s if passed_s else None


NO_TRAINING: Final = TrainingTotals(
    steps=0, tokens=0, loss=None, joules=0.0, emulated_s=0.0, watts=0.0, hbm_bytes_per_chip=0
)


class LeaseState(Plain, frozen=True, kw_only=True):
    """A group of chips that is, or was, leased: whole ranks. `until_emulated_s` is None if unknown;
    `training` until the job's first report.
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
    """One version of the weights, named by its number and the beginning of the weights' hash.
    `failure` is empty without one; `joules` are part of the engine's energy.
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
    """Whether the engine sleeps, in vLLM's sense, and the cost of the last time.

    `host_bytes`: of the timed model's weights; `wake_s`: all parts of waking up; `joules`: of the
    chips in both, part of the engine's energy.
    """

    asleep: tuple[str, ...] = ()
    level: Count = 0
    host_bytes: Count = 0
    sleep_s: float = 0.0
    wake_s: float = 0.0
    joules: float = 0.0


class HostRatio(Plain, frozen=True, kw_only=True):
    """Wall seconds that this host needs for an emulated second of `load`."""

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
    """Everything; `chips` are the partition's, then its spares; `faults` all since the start."""

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
