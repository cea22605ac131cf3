"""`ultraserve state`: a running server's machine, with the server's figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from emulator.specs.partition import shown_lnc
from emulator.units import GIB
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import add_connection_arguments, connect
from serving.commands.fault import stall_line
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.wire.machine_state import ChipState, ExpertBalance, MachineState


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `state` command."""
    parser = subparsers.add_parser(
        "state",
        help="print what a running server's chips, ranks and links are doing",
        description="Print what a running server's chips, ranks and links are doing.",
    )
    add_connection_arguments(parser)
    parser.add_argument(
        "--chip", type=int, metavar="N", help="print who holds the HBM of one chip, stack by stack"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the state; returns 0. Raises UltraServeError."""
    with connect(args) as client:
        state = client.call(control_call.GET_STATE)
    if args.json:
        print(json_text(state))
    elif args.chip is not None:
        print("\n".join(hbm_lines(state, args.chip)))
    else:
        print("\n".join(state_lines(state)))
    return 0


def state_lines(state: MachineState) -> Iterator[str]:
    """The machine as text: description, sums, a line for each chip."""
    from serving.wire.machine_snapshot import WINDOW_S

    parts = state.partition
    lnc = shown_lnc(parts.lnc)
    cores = "" if lnc is None else f"lnc {lnc}, "
    yield (
        f"{state.system}, {parts.chips} chips from chip {parts.first_chip} on: tp {parts.tp}, "
        f"dp {parts.dp}, ep {parts.ep}, {cores}attention by {parts.attention_split}, "
        f"{parts.spares} spares"
    )
    yield f"model {state.model}, weights {state.weights}, routing {state.routing}"
    pace = f"{state.dilation:g} wall seconds each" if state.dilation else "virtual"
    if state.host_ratios:
        pace += f", epoch {state.clock_epoch}"
    yield (
        f"emulated {state.emulated_s:.6f} s ({pace}), {state.steps:,} steps; "
        f"{state.chip_watts:,.0f} W chips, {state.facility_watts:,.0f} W facility "
        f"(mean of the last {WINDOW_S:g} s)"
    )
    for each in state.host_ratios:
        yield f"clock: {each.words}"
    ranks = state.ranks
    yield (
        f"ranks {sum(rank.up for rank in ranks)} of {len(ranks)} up; requests "
        f"{sum(rank.requests_running for rank in ranks):,} running, "
        f"{sum(rank.requests_waiting for rank in ranks):,} waiting; KV blocks "
        f"{sum(rank.kv_blocks_used for rank in ranks):,} of "
        f"{sum(rank.kv_blocks for rank in ranks):,}"
    )
    if state.age_s:
        yield f"as it was {state.age_s:.1f} s ago: the engine is busy, and has not answered since"
    if state.stall is not None:
        yield stall_line(state.stall)
    trays = (f"rack {r.rack} {r.switch_trays_up} of {r.switch_trays}" for r in state.racks)
    yield f"switch trays up: {', '.join(trays)}"
    yield _balance_line(state.expert_balance)
    going = [fault for fault in state.faults if fault.stage != "healed"]
    yield f"faults: {len(state.faults)}, {len(going)} not healed"
    for version in state.versions:
        if version.ranks or version.target:
            yield f"weights {version.weights} on {version.ranks} ranks: {version.note}"
    if state.sleep.asleep:
        yield f"asleep: {', '.join(state.sleep.asleep)}"
    yield ""
    yield from table_lines(table_of(_CHIPS, state.chips))


def hbm_lines(state: MachineState, chip: int) -> list[str]:
    """Bytes of each owner in each stack of one chip; raises ConfigError for an unknown one."""
    if not 0 <= chip < len(state.chips):
        raise ConfigError("chip", chip, f"0 to {len(state.chips) - 1}")
    stacks = state.chips[chip].stacks
    owners = sorted({owner for stack in stacks for owner in stack.owner_bytes})
    rows = [(owner, *(stack.owner_bytes.get(owner, 0) for stack in stacks)) for owner in owners]
    used = [sum(stack.owner_bytes.values()) for stack in stacks]
    capacity = [stack.capacity_bytes for stack in stacks]
    free = (have - taken for have, taken in zip(capacity, used, strict=True))
    rows += [("free", *free), ("capacity", *capacity)]
    columns: list[Column[tuple[Any, ...]]] = [
        Column("owner", align="left"),
        *(Column(f"stack {stack.stack}", form=",") for stack in stacks),
        Column("chip", lambda row: sum(row[1:]), ","),
    ]
    return [f"HBM of chip {chip}, bytes", *table_lines(table_of(columns, rows))]


def _balance_line(balance: ExpertBalance) -> str:
    if balance.imbalance is None:
        return "expert load: nothing routed yet"
    line = f"expert load, most over mean: {balance.imbalance:.3f}"
    if balance.imbalance_before is not None and balance.imbalance_after is not None:
        line += (
            f"; last rebalance {balance.imbalance_before:.3f} -> {balance.imbalance_after:.3f}"
            f" ({balance.rebalances} so far, {balance.moved_bytes / 1e9:,.3f} GB moved)"
        )
    return line


def _rank_words(chip: ChipState) -> str | None:
    return "spare" if chip.spare else None if chip.rank is None else str(chip.rank)


def chip_health(chip: ChipState) -> str:
    """A chip's health in words, with losses, and its phase out of service."""
    words = [chip.health.value]
    if chip.slow_factor > 1:
        words[0] += f" x{chip.slow_factor:g}"
    if chip.phase != "serving":
        words.append(chip.phase)
    words += [f"stack {stack.stack} failed" for stack in chip.stacks if stack.failed]
    words += [f"{cut.tier} {cut.lanes_cut} of {cut.lanes} lanes cut" for cut in chip.cut_links]
    return ", ".join(words)


_CHIPS: Final[tuple[Column[ChipState], ...]] = (
    Column("chip", lambda chip: chip.chip, "d"),
    Column("rack", lambda chip: chip.rack, "d"),
    Column("tray", lambda chip: chip.tray, "d"),
    Column("at", lambda chip: chip.position, "d"),
    Column("rank", _rank_words),
    Column("health", chip_health, align="left"),
    Column("HBM", lambda chip: chip.hbm_used_bytes, ",.2f", unit="GiB", scale=GIB),
    Column("of", lambda chip: chip.hbm_capacity_bytes, ",.0f", scale=GIB),
    Column("experts", lambda chip: chip.expert_slots_filled, ","),
    Column("of", lambda chip: chip.expert_slots, ","),
    Column("watts", lambda chip: chip.watts, ",.0f"),
)
