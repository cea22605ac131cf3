"""`ultraserve engine`: a running server's whole engine: who may enter, sleep, pause."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import add_change_arguments, connect
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient
    from serving.wire.admission_report import AdmissionReport, ClassReport
    from serving.wire.control_call import EngineSleepState

_MODES = ("abort", "wait", "keep")
_ACTIONS = {
    "sleep": "let weights and KV leave HBM",
    "wake_up": "let weights and KV come back",
    "pause": "hold requests back",
    "resume": "let requests go on",
    "state": "say whether it sleeps or pauses",
    "drain": "let no new request in; those inside go on",
    "undrain": "let requests in again",
    "admission": "say who is inside, who waits, and what was refused",
    "reset_prefix_cache": "forget the prefixes that the KV cache holds",
}
_OF_THE_DOOR = ("drain", "undrain", "admission")

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `engine` command with an action for each of vLLM's words."""
    parser = subparsers.add_parser(
        "engine",
        help="drain a running server's whole engine, or let it sleep, wake up, pause or resume",
        description="A running server's whole engine: its gateway to new requests, and vLLM's own "
        "sleep, wake_up, pause and resume. Single groups of chips are drained with `ultraserve "
        "drain`.",
        epilog="Exit codes: 0 done; 1 requests are still inside after --wait; 2 refused, "
        "unreachable or a wrong argument.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, words in _ACTIONS.items():
        action = actions.add_parser(name, help=words, description=f"{words.capitalize()}.")
        if name == "sleep":
            action.add_argument(
                "--level",
                type=int,
                choices=(1, 2),
                default=1,
                help="1: weights go to the hosts' memory; 2: they are given up, and read again "
                "(default: %(default)s); what vLLM calls level 0 is pause --keep-cache",
            )
        if name in ("sleep", "pause"):
            action.add_argument(
                "--mode",
                choices=_MODES,
                default=_MODES[0],
                help="what becomes of running requests (default: %(default)s)",
            )
        if name == "pause":
            action.add_argument("--keep-cache", action="store_true", help="keep the KV cache")
        if name == "drain":
            _add_drain_arguments(action)
        if name == "reset_prefix_cache":
            action.add_argument(
                "--reset-running-requests",
                action="store_true",
                help="put running requests back, to be computed again",
            )
        if name == "wake_up":
            action.add_argument(
                "--tags",
                nargs="+",
                choices=("weights", "kv_cache"),
                default=(),
                help="what is to come back (default: everything)",
            )
        add_change_arguments(action)
        action.set_defaults(run=run)


def _add_drain_arguments(action: argparse.ArgumentParser) -> None:
    action.add_argument("--reason", default="", help="one line that clients are told")
    action.add_argument(
        "--retry-after",
        type=float,
        default=0.0,
        metavar="S",
        help="wall seconds that clients are told to wait (default: the server's own choice)",
    )
    action.add_argument(
        "--wait",
        nargs="?",
        type=float,
        const=_WAIT_S,
        metavar="S",
        help=f"wait until nobody is inside, at most S wall seconds ({_WAIT_S:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Do it and print how the engine is then; returns the exit code.

    Raises:
        UltraServeError: vLLM refuses, or a server that does not answer.
    """
    if args.action in _OF_THE_DOOR:
        return _run_admission(args)
    with connect(args) as client:
        if args.action == "reset_prefix_cache":
            client.call(
                control_call.RESET_PREFIX_CACHE, reset_running_requests=args.reset_running_requests
            )
            print("{}" if args.json else "no prefix is remembered")
            return 0
        rest = _act(client, args)
    print(json_text(rest) if args.json else rest_line(rest))
    return 0


def _act(client: ControlClient, args: argparse.Namespace) -> EngineSleepState:
    match args.action:
        case "sleep":
            return client.call(control_call.SLEEP, level=args.level, mode=args.mode)
        case "wake_up":
            return client.call(control_call.WAKE_UP, tags=args.tags)
        case "pause":
            return client.call(
                control_call.PAUSE_GENERATION, mode=args.mode, keep_cache=args.keep_cache
            )
        case "resume":
            return client.call(control_call.RESUME_GENERATION)
    return client.call(control_call.GET_REST)


def _run_admission(args: argparse.Namespace) -> int:
    wait_s = getattr(args, "wait", None)
    if wait_s is not None and not 0 < wait_s < float("inf"):
        raise ConfigError(field="wait", value=wait_s, expected="a number above 0")
    with connect(args) as client:
        if args.action == "drain":
            admission = client.call(
                control_call.DRAIN_ENGINE, reason=args.reason, retry_after_s=args.retry_after
            )
        elif args.action == "undrain":
            admission = client.call(control_call.UNDRAIN_ENGINE)
        else:
            admission = client.call(control_call.GET_ADMISSION)
        if wait_s is not None:
            admission = wait_until_empty(client, admission, wait_s)
    print(json_text(admission) if args.json else "\n".join(admission_lines(admission)))
    return int(wait_s is not None and admission.in_flight > 0)


def wait_until_empty(
    client: ControlClient, admission: AdmissionReport, wait_s: float
) -> AdmissionReport:
    """The gateway when nobody is inside, or as it is after `wait_s` wall seconds."""
    end_s = time.monotonic() + wait_s
    while admission.in_flight and time.monotonic() < end_s:
        time.sleep(_POLL_S)  # polls another process
        admission = client.call(control_call.GET_ADMISSION)
    return admission


def admission_lines(admission: AdmissionReport) -> Iterator[str]:
    """Whether it is open, and a line for each class of work."""
    how = "open" if admission.is_open else f"closed: {admission.closed}"
    yield f"the gateway is {how}; {admission.in_flight:,} requests inside"
    if admission.expected_wait_s is not None:
        wait_s = admission.expected_wait_s
        yield f"a short request would wait {wait_s:.3g} emulated s for its first token"
    yield from table_lines(table_of(_CLASSES, admission.classes))


def _refusals(each: ClassReport) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(each.refused.items())) or "-"


_CLASSES: Final[tuple[Column[ClassReport], ...]] = (
    Column("class", lambda each: each.work_class.value, align="left"),
    Column("inside", lambda each: each.in_flight, ","),
    Column("queued", lambda each: each.queued, ","),
    Column("waiting", lambda each: each.waiting, ","),
    Column("entered", lambda each: each.entered, ","),
    Column("finished", lambda each: each.finished, ","),
    Column("aborted", lambda each: each.aborted, ","),
    Column("failed", lambda each: each.failed, ","),
    Column("refused", lambda each: sum(each.refused.values()), ","),
    Column("by reason", _refusals, align="left"),
)


def rest_line(rest: EngineSleepState) -> str:
    """How the engine rests, in words."""
    words = [word for word, true in (("asleep", rest.sleeping), ("paused", rest.paused)) if true]
    return f"the engine is {' and '.join(words) or 'awake'}"
