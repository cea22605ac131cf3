"""`ultraserve fault`: break a running server's machine, heal it, and see its recovery."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError, UltraServeError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import (
    OUTCOMES,
    add_change_arguments,
    add_connection_arguments,
    connect,
)
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient
    from serving.wire.control_call import FaultReport
    from serving.wire.machine_state import FaultRecord, StallState

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.2
_SAY_EVERY_S: Final = 10.0
_INDEX_MAX: Final = 2**31 - 1  # what the wire carries

_KINDS: Final = {
    FaultKind.LOSE_CHIP: ("a chip is gone, with all that it holds", ("chip",)),
    FaultKind.HANG_CHIP: ("a chip does not answer any more", ("chip",)),
    FaultKind.SLOW_CHIP: ("a chip's engines take longer", ("chip", "factor")),
    FaultKind.FAIL_STACK: ("an HBM stack is gone, with all that it holds", ("chip", "stack")),
    FaultKind.CUT_LINK: ("a chip's lanes of one tier are cut", ("chip", "tier", "lanes")),
    FaultKind.PULL_SWITCH_TRAY: ("a rack has one switch tray less", ("rack",)),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `fault` command with an action for each kind of fault, `heal` and `list`."""
    parser = subparsers.add_parser(
        "fault",
        help="break chips, memory and links of a running server, and heal them",
        description="Break chips, memory and links of a running server, and heal them.",
        epilog="Exit codes: 0 done; 1 a dry run says that it would not be survived, or --wait saw "
        f"requests fail or no end in time; 2 a wrong argument; {OUTCOMES}.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for kind, (words, names) in _KINDS.items():
        action = actions.add_parser(kind.value, help=words, description=f"{words.capitalize()}.")
        for name in names:
            action.add_argument(f"--{name}", required=name != "lanes", **_FIELDS[name])
        action.add_argument(
            "--dry-run", action="store_true", help="only ask whether it would be survived"
        )
        action.add_argument(
            "--wait",
            nargs="?",
            type=float,
            const=_WAIT_S,
            metavar="S",
            help=f"wait until the recovery has ended, at most S wall seconds ({_WAIT_S:g})",
        )
        add_change_arguments(action)
        action.set_defaults(run=inject, kind=kind, names=names)
    heal_action = actions.add_parser("heal", help="repair a chip, a rack's switches, or everything")
    which = heal_action.add_mutually_exclusive_group(required=True)
    for name in ("chip", "rack"):
        which.add_argument(f"--{name}", **_FIELDS[name])
    which.add_argument("--all", action="store_true", help="everything that is broken")
    add_change_arguments(heal_action)
    heal_action.set_defaults(run=heal)
    list_action = actions.add_parser("list", help="print the faults so far, with their recovery")
    add_connection_arguments(list_action)
    list_action.set_defaults(run=list_faults)


def _index(text: str) -> int:
    if not text.isdecimal() or int(text) > _INDEX_MAX:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, not {text!r}")
    return int(text)


_FIELDS: Final[Mapping[str, dict[str, Any]]] = {
    "chip": {"type": _index, "metavar": "N", "help": "the chip's number in the partition"},
    "stack": {"type": _index, "metavar": "N", "help": "the HBM stack's number on the chip"},
    "rack": {"type": _index, "metavar": "N", "help": "the rack's number in the system"},
    "factor": {"type": float, "metavar": "F", "help": "how many times as long they take; above 1"},
    "tier": {"choices": list(map(str, LinkTier))},
    "lanes": {"type": _index, "metavar": "N", "default": 0, "help": "default: all"},
}


def inject(args: argparse.Namespace) -> int:
    """Inject the fault and print the answer; returns the exit code. Raises UltraServeError."""
    if args.wait is not None and not 0 < args.wait < float("inf"):
        raise ConfigError("wait", args.wait, "a number above 0")
    given: dict[str, Any] = {name: getattr(args, name) for name in args.names}
    if "tier" in given:
        given["tier"] = LinkTier(given["tier"])
    fault = Fault(kind=args.kind, **given)
    with connect(args) as client:
        report = client.call(control_call.INJECT_FAULT, fault=fault, dry_run=args.dry_run)
        if report.number is None or args.wait is None:
            print(json_text(report) if args.json else report_line(fault, report))
            return int(not report.accepted and not report.survivable)
        if not args.json:
            print(report_line(fault, report), flush=True)
        record = wait_for_recovery(client, report.number, args.wait)
    print(json_text(record) if args.json else record_line(record))
    return int(record.stage in ("failed", "pending", "recovering"))


def wait_for_recovery(client: ControlClient, number: int, wait_s: float) -> FaultRecord:
    """The fault's record after its recovery, or after `wait_s` wall seconds."""
    end_s = time.monotonic() + wait_s
    shown_s = -_SAY_EVERY_S
    while True:
        state = client.call(control_call.GET_STATE)
        # A state of before the fault does not have it yet.
        record = next((one for one in state.faults if one.number == number), None)
        ended = record is not None and record.stage not in ("pending", "recovering")
        if record is not None and (ended or time.monotonic() >= end_s):
            return record
        if time.monotonic() >= end_s:
            raise UltraServeError(f"fault {number}: no word of it within {wait_s:g} s")
        if state.stall is not None and time.monotonic() - shown_s >= _SAY_EVERY_S:
            shown_s = time.monotonic()
            print(stall_line(state.stall), file=sys.stderr, flush=True)
        time.sleep(_POLL_S)  # polls another process


def heal(args: argparse.Namespace) -> int:
    """Repair, and print which faults are over; returns 0."""
    with connect(args) as client:
        report = client.call(control_call.HEAL, chip=args.chip, rack=args.rack)
    if args.json:
        print(json_text(report))
    else:
        numbers = ", ".join(map(str, report.healed))
        print(f"healed: {numbers}" if numbers else "nothing to heal")
    return 0


def list_faults(args: argparse.Namespace) -> int:
    """Print every fault since the engine's start; returns 0."""
    with connect(args) as client:
        faults = client.call(control_call.GET_STATE).faults
    if args.json:
        print(json_text(faults))
    elif faults:
        print("\n".join(fault_lines(faults)))
    else:
        print("no faults")
    return 0


def fault_words(fault: Fault) -> str:
    """A fault as on its command line."""
    words = [fault.kind.value]
    for name in _KINDS[fault.kind][1]:
        value = getattr(fault, name)
        words.append(f"{name} {value:g}" if name == "factor" else f"{name} {value}")
    return " ".join(words).replace("lanes 0", "all lanes")


def stall_line(stall: StallState) -> str:
    """Reason and rest of a standstill."""
    return (
        f"{stall.reason}: {stall.left_s:,.1f} emulated s are left, {stall.wall_left_s:,.0f} s of "
        "wall time"
    )


def report_line(fault: Fault, report: FaultReport) -> str:
    """The server's answer to one fault."""
    verdict = "survivable" if report.survivable else "not survivable"
    number = "dry run" if report.number is None else f"fault {report.number}"
    line = f"{number}: {fault_words(fault)}: {verdict}: {report.reason}"
    if not report.stall_s:
        return line
    wall = f", {report.stall_wall_s:,.0f} s of wall time" if report.stall_wall_s else ""
    return f"{line}; the machine stands still for {report.stall_s:,.3f} emulated s{wall}"


def record_line(record: FaultRecord) -> str:
    """Course of one fault."""
    line = f"fault {record.number}: {record.stage}"
    if record.recovery is None:
        return line
    if record.stage == "recovering":
        return f"{line}, and the machine stands still; see `ultraserve state`"
    recovery = record.recovery
    return (
        f"{line} after {recovery.emulated_ns / 1e6:,.3f} emulated ms ({recovery.wall_s:.2f} s of "
        f"wall time): {recovery.requests_moved} requests moved, {recovery.requests_failed} failed, "
        f"{recovery.experts_reloaded} experts reloaded"
    )


def fault_lines(faults: Iterable[FaultRecord]) -> list[str]:
    """A table of faults, with dashes until their recovery has ended."""

    def of(name: str) -> Callable[[FaultRecord], object]:
        return lambda record: record.recovery and getattr(record.recovery, name)

    columns: tuple[Column[FaultRecord], ...] = (
        Column("no.", lambda record: record.number, "d"),
        Column("fault", lambda record: fault_words(record.fault), align="left"),
        Column("injected", lambda record: record.injected_emulated_s, ".6f", unit="s"),
        Column("survivable", lambda record: "yes" if record.survivable else "no", align="left"),
        Column("stage", lambda record: record.stage.value, align="left"),
        Column("recovery", of("emulated_ns"), ",.3f", unit="ms", scale=1e6),
        Column("wall", of("wall_s"), ".2f", unit="s"),
        Column("moved", of("requests_moved"), "d"),
        Column("failed", of("requests_failed"), "d"),
        Column("reloaded", of("experts_reloaded"), "d"),
        Column("reason", lambda record: record.reason, align="left"),
    )
    return table_lines(table_of(columns, faults))
