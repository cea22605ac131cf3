"""Machine states for tests: one by hand, and arbitrary ones."""

import dataclasses
import types
import typing
from enum import Enum

import msgspec
from hypothesis import strategies as st

from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.hbm_usage import StackUsage
from serving.wire.machine_state import (
    ChipHealth,
    ChipState,
    CutLink,
    ExpertBalance,
    FaultRecord,
    FaultStage,
    MachineState,
    PartitionState,
    RackState,
    RankState,
    Recovery,
)


def a_chip(chip: int, *, spare: bool = False) -> ChipState:
    """One chip of the first rack, two stacks in use."""
    return ChipState(
        chip=chip,
        rack=0,
        tray=chip // 4,
        position=chip % 4,
        health=ChipHealth.UP,
        slow_factor=1.0,
        spare=spare,
        rank=None if spare else chip,
        stacks=tuple(
            StackUsage(
                stack=stack,
                failed=False,
                capacity_bytes=36 * 10**9,
                owner_bytes={} if spare else {"kv": 10**9, "weights/experts": 5 * 10**8},
            )
            for stack in range(4)
        ),
        cut_links=(),
        expert_slots=96,
        expert_slots_filled=0 if spare else 64,
        watts=400.0 if spare else 700.5,
    )


def a_state() -> MachineState:
    """Two chips and a spare, after one survived fault."""
    return MachineState(
        emulated_s=12.5,
        dilation=4.0,
        steps=1234,
        system="trn3-nl72x2",
        model="qwen3-30b-a3b",
        weights="stand-in small-moe",
        routing="computed",
        partition=PartitionState(
            chips=2, tp=1, dp=2, ep=2, lnc=2, first_chip=0, spares=1, attention_split="heads"
        ),
        chip_watts=1801.0,
        facility_watts=3000.0,
        chips=(a_chip(0), a_chip(1), a_chip(2, spare=True)),
        ranks=tuple(
            RankState(
                rank=rank,
                up=True,
                requests_running=3,
                requests_waiting=rank,
                kv_blocks_used=10,
                kv_blocks=4096,
            )
            for rank in range(2)
        ),
        racks=(
            RackState(rack=0, switch_trays_up=9, switch_trays=10),
            RackState(rack=1, switch_trays_up=10, switch_trays=10),
        ),
        faults=(
            FaultRecord(
                number=1,
                fault=Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0),
                injected_emulated_s=3.25,
                survivable=True,
                reason="9 switch trays carry the rack",
                stage=FaultStage.RECOVERED,
                recovery=Recovery(
                    emulated_ns=1_500_000,
                    wall_s=0.25,
                    requests_moved=0,
                    requests_failed=0,
                    experts_reloaded=0,
                ),
                healed_emulated_s=None,
            ),
        ),
        expert_balance=ExpertBalance(
            imbalance=1.25,
            imbalance_before=2.5,
            imbalance_after=1.125,
            rebalances=3,
            moved_bytes=7 * 10**9,
        ),
    )


def a_broken_chip() -> ChipState:
    """A slow chip that has lost a stack and links."""
    chip = a_chip(1)
    stacks = (dataclasses.replace(chip.stacks[0], failed=True, owner_bytes={}),)
    return msgspec.structs.replace(
        chip,
        health=ChipHealth.SLOW,
        slow_factor=2.5,
        stacks=stacks + chip.stacks[1:],
        cut_links=(CutLink(tier=LinkTier.CROSS_RACK, lanes_cut=4, lanes=16),),
    )


def faults() -> st.SearchStrategy[Fault]:
    """Every valid fault, without fields that its kind does not use."""
    number = st.integers(0, 2**31 - 1)
    chip = {"chip": number}
    used: dict[FaultKind, dict[str, st.SearchStrategy[typing.Any]]] = {
        FaultKind.LOSE_CHIP: chip,
        FaultKind.HANG_CHIP: chip,
        FaultKind.SLOW_CHIP: {**chip, "factor": st.floats(1.0, 1e9, exclude_min=True)},
        FaultKind.FAIL_STACK: {**chip, "stack": number},
        FaultKind.CUT_LINK: {**chip, "tier": st.sampled_from(LinkTier), "lanes": number},
        FaultKind.PULL_SWITCH_TRAY: {"rack": number},
    }
    return st.sampled_from(FaultKind).flatmap(
        lambda kind: st.builds(Fault, kind=st.just(kind), **used[kind])
    )


def anything_of(kind: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Any value of one of our plain types, small enough to draw quickly."""
    simple = {
        bool: st.booleans(),
        int: st.integers(0, 2**31 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=8),
        types.NoneType: st.none(),
        Fault: faults(),
    }
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        bare, meta = inner
        if meta.pattern:  # one of a few words
            return st.sampled_from(meta.pattern.strip("^()$").split("|"))
        return st.integers(-1, 2**31 - 1) if meta.ge == -1 else anything_of(bare)
    if kind in simple:
        return simple[kind]
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(anything_of, inner))
    if origin is tuple:
        return st.lists(anything_of(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(*map(anything_of, inner), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    members = {name: anything_of(hint) for name, hint in hints.items()}
    return st.fixed_dictionaries(members).map(lambda values: kind(**values))
