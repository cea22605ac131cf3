"""`ultraserve engine`: admission, sleep and pause of a running server's engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import add_change_arguments, connect
from serving.policy.rank_roles import RankRole
from serving.wire import control_call
from serving.wire.admission_report import AdmissionReport, ClassReport
from serving.wire.control_call import EngineSleepState, RolesReport, Rpc
from startup.typed_options import flag_of

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient

_ACTIONS: Final[Mapping[str, tuple[Rpc[Any], str, tuple[str, ...]]]] = {
    "sleep": (control_call.SLEEP, "let weights and KV leave HBM", ("level", "mode")),
    "wake_up": (control_call.WAKE_UP, "let weights and KV come back", ("tags",)),
    "pause": (control_call.PAUSE_GENERATION, "hold requests back", ("mode", "keep_cache")),
    "resume": (control_call.RESUME_GENERATION, "let requests go on", ()),
    "state": (control_call.GET_REST, "say whether it sleeps or pauses", ()),
    "drain": (
        control_call.DRAIN_ENGINE,
        "let no new request in; those inside go on",
        ("reason", "retry_after_s"),
    ),
    "undrain": (control_call.UNDRAIN_ENGINE, "let requests in again", ()),
    "admission": (
        control_call.GET_ADMISSION,
        "say who is inside, who waits, and what was refused",
        (),
    ),
    "roles": (control_call.GET_RANK_ROLES, "say which ranks prefill, decode, or do both", ()),
    "set_role": (
        control_call.SET_RANK_ROLE,
        "give a rank, or replica, another role",
        ("rank", "role"),
    ),
    "reset_prefix_cache": (
        control_call.RESET_PREFIX_CACHE,
        "forget the prefixes that the KV cache holds",
        ("reset_running_requests",),
    ),
}
"""Each action's call, in words, and its request's fields."""

_FIELDS: Final[Mapping[str, dict[str, Any]]] = {
    "level": {
        "type": int,
        "choices": (1, 2),
        "default": 1,
        "help": "1: weights go to the hosts' memory; 2: they are given up, and read again "
        "(default: %(default)s); what vLLM calls level 0 is pause --keep-cache",
    },
    "mode": {
        "choices": ("abort", "wait", "keep"),
        "default": "abort",
        "help": "what becomes of running requests (default: %(default)s)",
    },
    "keep_cache": {"action": "store_true", "help": "keep the KV cache"},
    "reason": {"default": "", "help": "one line that clients are told"},
    "retry_after_s": {
        "type": float,
        "default": 0.0,
        "metavar": "S",
        "help": "wall seconds that clients are told to wait (default: the server's own choice)",
    },
    "reset_running_requests": {
        "action": "store_true",
        "help": "put running requests back, to be computed again",
    },
    "rank": {
        "type": int,
        "help": "its number, from 0 on (default: all of --replica, of a service with roles)",
    },
    "role": {
        "choices": tuple(RankRole),
        "required": True,
        "help": "prefill sends requests on with their first token, decode takes them",
    },
    "tags": {
        "nargs": "+",
        "choices": ("weights", "kv_cache"),
        "default": (),
        "help": "what is to come back (default: everything)",
    },
}

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `engine` command with an action for each of vLLM's words."""
    parser = subparsers.add_parser(
        "engine",
        help="drain a running server's whole engine, or let it sleep, wake up, pause or resume; "
        "roles of its ranks",
        description="A running server's whole engine: its gateway to new requests, vLLM's own "
        "sleep, wake_up, pause and resume, and what its ranks do. Single groups of chips are "
        "drained with `ultraserve drain`.",
        epilog="Exit codes: 0 done; 1 requests are still inside after --wait; 2 refused, "
        "unreachable or a wrong argument.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (_, words, fields) in _ACTIONS.items():
        action = actions.add_parser(name, help=words, description=f"{words.capitalize()}.")
        for field in fields:
            action.add_argument(flag_of(field), dest=field, **_FIELDS[field])
        action.set_defaults(run=run, wait=None)
        if name == "drain":
            action.add_argument(
                "--wait",
                nargs="?",
                type=float,
                const=_WAIT_S,
                metavar="S",
                help=f"wait until nobody is inside, at most S wall seconds ({_WAIT_S:g})",
            )
        add_change_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Act and print the engine's state; returns the exit code. Raises UltraServeError."""
    if args.wait is not None and not 0 < args.wait < float("inf"):
        raise ConfigError("wait", args.wait, "a number above 0")
    rpc, _, fields = _ACTIONS[args.action]
    with connect(args) as client:
        given = {field: getattr(args, field) for field in fields}
        if rpc is control_call.SET_RANK_ROLE:
            given["all_ranks"] = args.rank is None
        answer = client.call(rpc, **given)
        if args.wait is not None:
            answer = wait_until_empty(client, answer, args.wait)
    print(json_text(answer or {}) if args.json else "\n".join(_answer_lines(answer)))
    return int(args.wait is not None and answer.in_flight > 0)


def _answer_lines(answer: EngineSleepState | AdmissionReport | RolesReport | None) -> Iterator[str]:
    if isinstance(answer, AdmissionReport):
        yield from admission_lines(answer)
    elif isinstance(answer, RolesReport):
        yield from (f"rank {each.rank}: {each.role}" for each in answer.ranks)
    elif answer is None:
        yield "no prefix is remembered"
    else:
        words = [("asleep", answer.sleeping), ("paused", answer.paused)]
        yield f"the engine is {' and '.join(word for word, true in words if true) or 'awake'}"


def wait_until_empty(
    client: ControlClient, admission: AdmissionReport, wait_s: float
) -> AdmissionReport:
    """The gateway when empty, or after `wait_s` wall seconds."""
    end_s = time.monotonic() + wait_s
    while admission.in_flight and time.monotonic() < end_s:
        time.sleep(_POLL_S)  # polls another process
        admission = client.call(control_call.GET_ADMISSION)
    return admission


def admission_lines(admission: AdmissionReport) -> Iterator[str]:
    """Whether it is open, and a line for each class."""
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
