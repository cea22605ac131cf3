"""The whole machine between two steps, as the control API shows it: frozen, plain, strict JSON.

The engine's process makes it and the API's process hands it on, so both sides share this
definition. Fields are named as in `protos/ultraserve/v1/control.proto`, which says the same on the
wire. Emulated seconds count from the engine's start.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from emulator.specs.fault import Fault, LinkTier

Count = Annotated[int, Meta(ge=0)]
"""A number of things, or one of them by its number."""


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

    PENDING: it has happened, and no step has met it yet. RECOVERED: every request that it touched
    goes on. FAILED: requests that it touched ended with an error.
    """

    PENDING = "pending"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    FAILED = "failed"
    HEALED = "healed"


class PartitionState(Plain, frozen=True, kw_only=True):
    """How the chips are divided; `dp` counts the ranks of `tp` chips."""

    chips: Count
    tp: Count
    dp: Count
    ep: Count
    lnc: Count
    first_chip: Count
    spares: Count


class StackState(Plain, frozen=True, kw_only=True):
    """One HBM stack; `owner_bytes` says who holds what of its capacity."""

    stack: Count
    failed: bool
    capacity_bytes: Count
    owner_bytes: dict[str, Count]


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
    """

    chip: Count
    rack: Count
    tray: Count
    position: Count
    health: ChipHealth
    slow_factor: float
    spare: bool
    rank: Count | None
    stacks: tuple[StackState, ...]
    cut_links: tuple[CutLink, ...]
    expert_slots: Count
    expert_slots_filled: Count
    watts: float

    @property
    def hbm_used_bytes(self) -> int:
        """What all owners hold in all stacks."""
        return sum(sum(stack.owner_bytes.values()) for stack in self.stacks)

    @property
    def hbm_capacity_bytes(self) -> int:
        """The stacks that have not failed."""
        return sum(stack.capacity_bytes for stack in self.stacks if not stack.failed)


class RankState(Plain, frozen=True, kw_only=True):
    """One attention replica and its scheduler's queues."""

    rank: Count
    up: bool
    requests_running: Count
    requests_waiting: Count
    kv_blocks_used: Count
    kv_blocks: Count


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

    `requests_failed` ended with an error. `experts_reloaded` are slots that were filled again, from
    another copy or from the checkpoint.
    """

    emulated_ns: Count
    wall_s: float
    requests_moved: Count
    requests_failed: Count
    experts_reloaded: Count


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


class MachineState(Plain, frozen=True, kw_only=True):
    """Everything.

    Attributes:
        dilation: wall seconds per emulated second; 0 when time is virtual.
        model: what sets time, HBM and energy; `weights` make the tokens.
        routing: where expert choices come from.
        chips: the partition's, then its spares.
        faults: all since the start, in the order of their numbers.
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
