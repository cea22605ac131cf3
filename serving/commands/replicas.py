"""`ultraserve replicas`: the replicas of a running service, and other weights for all of them."""

from __future__ import annotations

import argparse
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import PATIENCE_S, TIMEOUT_S
from serving.commands.engine import wait_until_empty
from serving.commands.publish import checkpoint, version_line
from serving.server.control.control_address import ControlAddress
from serving.server.replicas.replica_list import PATH, ReplicaList, ReplicaReport
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient

KEY_VARIABLE: Final = "ULTRASERVE_API_KEY"
_POLL_S: Final = 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `replicas` command."""
    parser = subparsers.add_parser(
        "replicas",
        help="list the replicas of `ultraserve serve --replicas`, or let all serve other weights",
        description="List the replicas of a service on this machine, or let them serve other "
        "weights, one after the other: each is drained, reads, and is opened again. Commands to a "
        "running server take one replica by --replica: `ultraserve engine drain --replica 1`.",
        epilog=f"A client's key, where the service has keys, is read from {KEY_VARIABLE}.",
    )
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    publish = actions.add_parser("publish", help="let all replicas serve other weights")
    publish.add_argument("weights", metavar="DIR", help="checkpoint on the service's machine")
    publish.add_argument("--note", default="", help="one line that stands beside the version")
    rollback = actions.add_parser("rollback", help="let all serve the weights before the present")
    for each in (parser, publish, rollback):
        each.add_argument(
            "--url",
            default=argparse.SUPPRESS,
            help="the service's address (default: http://127.0.0.1:8000)",
        )
        each.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )
    for each in (publish, rollback):
        each.add_argument(
            "--wait",
            type=float,
            default=300.0,
            metavar="S",
            help="wall seconds of a replica for its requests' end and for reading, at most each "
            "(default: %(default)g)",
        )


def run(args: argparse.Namespace) -> int:
    """Act, and print; returns the exit code. Raises UltraServeError."""
    listed = read_replicas(getattr(args, "url", "http://127.0.0.1:8000"))
    if args.action is None:
        print(json_text(listed) if "json" in args else "\n".join(_lines(listed)))
        return 0
    if args.action == "publish":
        fields = {"weights_dir": str(checkpoint(args.weights)), "note": args.note}
        rpc = control_call.PUBLISH
    else:
        fields, rpc = {}, control_call.ROLLBACK
    if not listed.ports.control_port:
        raise ConfigError("control_port", 0, "a service with a control service (--control-port)")
    for each in listed.replicas:
        with _connected(listed.ports.control_port, each.replica) as client:
            report = _roll_when_there(client, rpc, fields, wait_s=args.wait)
        line = json_text(report) if "json" in args else version_line(report)
        print(line if "json" in args else f"replica {each.replica}: {line}", flush=True)
    return 0


def read_replicas(url: str) -> ReplicaList:
    """The replicas of the service at `url`; raises ConfigError where none answers."""
    request = urllib.request.Request(url.rstrip("/") + PATH)
    if key := os.environ.get(KEY_VARIABLE):
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=ReplicaList)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        expected = f"the address of `ultraserve serve --replicas` ({error})"
        raise ConfigError("url", url, expected) from error


def _roll_when_there(
    client: ControlClient,
    rpc: control_call.Rpc[control_call.VersionReport],
    fields: dict[str, str],
    *,
    wait_s: float,
) -> control_call.VersionReport:
    """Roll, and again where the replica ends meanwhile and is started anew: its next process serves
    what it served, and publishing the same twice changes nothing.
    """
    from serving.server.control.control_client import ServerUnreachable

    end_s = time.monotonic() + wait_s
    while True:
        try:
            return _roll(client, rpc, fields, wait_s=wait_s)
        except ServerUnreachable:
            # A rollback that was done, and then lost its replica, must not be done twice.
            if rpc is control_call.ROLLBACK or time.monotonic() > end_s:
                raise
            time.sleep(_POLL_S)


def _roll(
    client: ControlClient,
    rpc: control_call.Rpc[control_call.VersionReport],
    fields: dict[str, str],
    *,
    wait_s: float,
) -> control_call.VersionReport:
    """Drain one replica, change its weights, wait until every block serves them, and open it."""
    wait_until_empty(client, client.call(control_call.DRAIN_ENGINE), wait_s)
    try:
        report = client.call(rpc, **fields)
        end_s = time.monotonic() + wait_s
        for telemetry, _ in client.telemetry(_POLL_S):
            if not telemetry.rollout_blocks_pending or time.monotonic() > end_s:
                break
        return msgspec.structs.replace(report, waiting_blocks=telemetry.rollout_blocks_pending)
    finally:
        client.call(control_call.UNDRAIN_ENGINE)


def _connected(port: int, replica: int) -> ControlClient:
    from serving.access.control_key import find_control_key
    from serving.server.control.control_client import ControlClient

    key = find_control_key(port, os.environ, key_file=None, on_this_machine=True)
    return ControlClient(
        ControlAddress(port=port), TIMEOUT_S, key=key, replica=replica, patience_s=PATIENCE_S
    )


def _lines(listed: ReplicaList) -> Iterator[str]:
    ready = sum(each.state == "ready" for each in listed.replicas)
    yield f"{ready} of {len(listed.replicas)} replicas are ready"
    if (whole := listed.figures) is not None:
        per_mw = (
            f"{value:,.0f} {basis}" for basis, value in sorted(whole.output_per_s_per_mw.items())
        )
        yield (
            f"together: ranks {whole.ranks_up} of {whole.ranks} up, chips {whole.chips_up} of "
            f"{whole.chips}, {whole.faults_open} faults open; {whole.output_tokens_per_s:,.1f} "
            f"output tokens/s; {whole.facility_watts:,.0f} W facility; tokens/s/MW: "
            f"{', '.join(per_mw) or '-'}"
        )
    if listed.ports.control_port:
        address = ControlAddress(port=listed.ports.control_port)
        yield f"control service {address}, its calls by --replica; page: `ultraserve console`"
    yield from table_lines(table_of(_COLUMNS, listed.replicas))


def _weights(fingerprint: str) -> str:
    """The version and hash at its end, `v2-1a2b3c4d`; "-" before the first answer."""
    return "-".join(fingerprint.split("-")[-2:]) or "-"


def _figure(name: str) -> Callable[[ReplicaReport], float | None]:
    return lambda each: None if each.figures is None else getattr(each.figures, name)


def _per_megawatt(each: ReplicaReport) -> float | None:
    """Output tokens a second and megawatt of the power that is drawn."""
    return None if each.figures is None else each.figures.output_per_s_per_mw.get("drawn")


_COLUMNS: Final[tuple[Column[ReplicaReport], ...]] = (
    Column("replica", lambda each: each.replica),
    Column("state", lambda each: each.state.value, align="left"),
    Column("role", lambda each: each.role or "-", align="left"),
    Column("UltraServer", lambda each: each.ultraserver, align="left"),
    Column(
        "chips", lambda each: f"{each.first_chip}-{each.first_chip + each.chips - 1}", align="left"
    ),
    Column("inside", lambda each: each.requests_in_flight, ","),
    Column("tokens", lambda each: each.load_tokens, ","),
    Column("sent", lambda each: each.requests, ","),
    Column("lost", lambda each: each.lost_requests, ","),
    Column("restarts", lambda each: each.restarts, ","),
    Column("weights", lambda each: _weights(each.fingerprint), align="left"),
    Column("ranks up", _figure("ranks_up"), ","),
    Column("faults", _figure("faults_open"), ","),
    Column("tokens/s", _figure("output_tokens_per_s"), ",.1f"),
    Column("watts", _figure("facility_watts"), ",.0f"),
    Column("tokens/s/MW", _per_megawatt, ",.0f"),
    Column("reason", lambda each: each.reason or "-", align="left"),
)
