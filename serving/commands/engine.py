"""`ultraserve engine`: vLLM's own sleep, wake_up, pause and resume, for the whole engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from serving.commands.control_connection import add_connection_arguments, connect
from serving.commands.json_text import json_text

if TYPE_CHECKING:
    from serving.endpoints.control_client import ControlClient
    from serving.endpoints.engine_rest import EngineRest

_MODES = ("abort", "wait", "keep")
_ACTIONS = {
    "sleep": "let weights and KV leave HBM",
    "wake_up": "let weights and KV come back",
    "pause": "hold requests back",
    "resume": "let requests go on",
    "state": "say whether it sleeps or pauses",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `engine` command with an action for each of vLLM's words."""
    parser = subparsers.add_parser(
        "engine",
        help="let a running server's whole engine sleep, wake up, pause or resume",
        description="vLLM's own sleep, wake_up, pause and resume, for a running server's whole "
        "engine. Single groups of chips are drained with `ultraserve drain`.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, words in _ACTIONS.items():
        action = actions.add_parser(name, help=words, description=f"{words.capitalize()}.")
        if name == "sleep":
            action.add_argument(
                "--level",
                type=int,
                choices=(0, 1, 2),
                default=1,
                help="0: only hold requests back; 1: weights go to the hosts' memory; 2: they are "
                "given up, and read again (default: %(default)s)",
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
        if name == "wake_up":
            action.add_argument(
                "--tags",
                nargs="+",
                choices=("weights", "kv_cache"),
                default=(),
                help="what is to come back (default: everything)",
            )
        add_connection_arguments(action)
        action.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do it and print how the engine rests then; returns 0.

    Raises:
        UltraServeError: vLLM refuses, or a server that does not answer.
    """
    with connect(args) as client:
        rest = _act(client, args)
    print(json_text(rest) if args.json else rest_line(rest))
    return 0


def _act(client: ControlClient, args: argparse.Namespace) -> EngineRest:
    match args.action:
        case "sleep":
            return client.sleep(level=args.level, mode=args.mode)
        case "wake_up":
            return client.wake_up(args.tags)
        case "pause":
            return client.pause(mode=args.mode, keep_cache=args.keep_cache)
        case "resume":
            return client.resume_generation()
    return client.rest()


def rest_line(rest: EngineRest) -> str:
    """How the engine rests, in words."""
    words = [word for word, true in (("asleep", rest.sleeping), ("paused", rest.paused)) if true]
    return f"the engine is {' and '.join(words) or 'awake'}"
