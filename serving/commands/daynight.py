"""`ultraserve daynight`: which chips of a running server serve, which train, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from emulator.units import GB
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.control_connection import (
    add_change_arguments,
    add_connection_arguments,
    connect,
)
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.wire.day_night_state import DayNightState, GroupState, JobState
    from serving.wire.machine_state import LeaseState


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `daynight` command."""
    parser = subparsers.add_parser(
        "daynight",
        help="show or change which chips of a running server serve and which train",
        description="Show which chips of a running server serve, which train, and why; or change "
        "who decides it. The server was started with --day-night or --schedule.",
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run, action="show")
    actions = parser.add_subparsers(metavar="ACTION")
    policy = actions.add_parser("policy", help="let another policy decide", allow_abbrev=False)
    policy.add_argument(
        "policy",
        help="never, schedule:22:00-06:00@Europe/Berlin, demand, quantile:0.99, erlang, "
        "price:FILE, carbon:FILE, fixed:GROUPS or "
        "manual",
    )
    group = actions.add_parser("group", help="say what a group is to do, under the policy manual")
    group.add_argument("group", type=int, help="its number")
    group.add_argument("phase", choices=("serving", "training"))
    for action, name in ((policy, "policy"), (group, "group")):
        add_change_arguments(action)
        action.set_defaults(run=run, action=name)


def run(args: argparse.Namespace) -> int:
    """Apply the change and print the state; returns 0. Raises UltraServeError."""
    with connect(args) as client:
        match args.action:
            case "policy":
                state = client.call(control_call.SET_POLICY, policy=args.policy)
            case "group":
                state = client.call(control_call.SET_PHASE, group=args.group, phase=args.phase)
            case _:
                state = client.call(control_call.GET_DAY_NIGHT)
    print(json_text(state) if args.json else "\n".join(day_night_lines(state)))
    return 0


def day_night_lines(state: DayNightState) -> Iterator[str]:
    """All as text: policy, groups, job, hand-overs."""
    yield f"policy {state.policy_words}"
    serving = sum(group.phase == "serving" for group in state.groups)
    yield (
        f"{state.time_of_day} (a day is {state.day_length_s:g} emulated s): {serving} of "
        f"{len(state.groups)} groups serve, {state.groups_desired} wanted: {state.reason}"
    )
    yield from _change_lines(state)
    yield from _demand_lines(state)
    if state.restarts:
        yield f"began again {state.restarts} times, the last time after {state.trouble}"
    yield ""
    yield from table_lines(table_of(_GROUPS, state.groups))
    yield ""
    yield from _job_lines(state.job)
    yield from _version_lines(state)
    if state.leases:
        yield ""
        yield "hand-overs, the last ones, in emulated time; J of the chips while they changed hands"
        yield from table_lines(table_of(_LEASES, state.leases))
        yield from _trained_lines(state.leases)


def _change_lines(state: DayNightState) -> Iterator[str]:
    """The next change of the number of groups, if known."""
    if state.next_change_day_s is not None:
        ahead_h = (state.next_change_day_s - state.day_s) / 3600
        terms = f", {state.next_change_if}" if state.next_change_if else ""
        yield f"next change in {ahead_h:.1f} h of the day{terms}"
    elif state.policy != "manual":
        yield f"no change within a day{f', {state.next_change_if}' if state.next_change_if else ''}"


def _demand_lines(state: DayNightState) -> Iterator[str]:
    """Load, its weight, its forecast, and the response to a burst."""
    line = f"load {state.load_per_s:.3g} requests per emulated s"
    if state.group_requests_per_s is None:
        yield f"{line}; nobody knows what a group serves"
    else:
        yield (
            f"{line}; a group serves {state.group_requests_per_s:.3g} within {state.slo} "
            f"({state.group_requests_source})"
        )
    if state.ttft_attainment is not None:
        yield f"first tokens in time: {state.ttft_attainment:.1%} of the recent requests"
    if state.tpot_attainment is not None:
        yield f"further tokens in time: {state.tpot_attainment:.1%} of the recent requests"
    for each in state.forecasts:
        high = (
            "too little is known to say how high at most"
            if each.high_per_s is None
            else f"below {each.high_per_s:.3g}/s with {each.confidence:.0%} confidence"
        )
        yield (
            f"forecast for the next {each.window_s / 3600:.1f} h of the day: a peak of "
            f"{each.expected_per_s:.3g}/s, {high}"
        )
    back_s = state.burst_response_s - state.burst_seen_s
    line = (
        f"a burst has its groups back within {state.burst_response_s:.3g} emulated s: "
        f"{state.burst_seen_s:.3g} until it is seen, {back_s:.3g} to save and to read weights"
    )
    if state.return_s is not None:
        line += f"; the last group that was called back took {state.return_s:.3f}"
    yield line


def _version_lines(state: DayNightState) -> Iterator[str]:
    """The served version, and the last attempt to publish the night's weights."""
    for version in state.versions:
        if version.target:
            note = f" ({version.note})" if version.note else ""
            yield (
                f"serves version {version.number}, {version.weights}{note}, on {version.ranks} "
                f"ranks, from {version.weights_dir}"
            )
    yield f"publishing {state.publish}{': ' if state.published else ''}{state.published}"


def _job_lines(job: JobState) -> Iterator[str]:
    line = f"job {job.phase}"
    if job.pid is not None:
        line += f" (process {job.pid}) on chips {chips_text(job.chips)}"
    yield f"{line}, in {job.directory}"
    if job.step:
        held_out = "" if job.held_out_loss is None else f", held-out {job.held_out_loss:.4f}"
        loss = "" if job.loss is None else f", loss {job.loss:.4f}{held_out} nats per token"
        saved = "none" if job.checkpoint_step is None else f"step {job.checkpoint_step}"
        yield (
            f"  step {job.step:,}, {job.tokens:,} tokens{loss}; {job.tokens_per_wall_s:,.0f} "
            f"tokens per wall s; checkpoint {saved}, the next at step {job.next_save_step}: a kill "
            f"now loses {job.step - (job.checkpoint_step or 0):,} steps"
        )
    yield from _emulated_lines(job)
    if job.trouble:
        yield f"  {job.trouble}"


def _emulated_lines(job: JobState) -> Iterator[str]:
    """What the emulated chips have done, and what the host has of it."""
    share = job.trained_share
    if share is None:
        return
    line = f"  {job.emulated_s:.3f} emulated s, {job.joules:,.0f} J"
    if job.watts:
        line += f", {job.watts:,.0f} W now"
    if job.trained_tokens != job.tokens:
        line += f"; fast-forwarded to {job.trained_steps:,} steps, {job.trained_tokens:,} tokens"
        line += f", of which {job.tokens / max(1, job.trained_tokens):.2%} are computed"
    if job.lag_s:
        line += (
            f"; {job.lag_s:.3f} s late, as this host is slow: {share:.2%} of what its chips would "
            "train"
        )
    yield line


def _trained_lines(leases: Sequence[LeaseState]) -> Iterator[str]:
    """A job's work on the chips of each lease."""
    for lease in leases:
        told = lease.training
        if told is not None:
            loss = "" if told.loss is None else f", loss {told.loss:.4f} nats per token"
            share = told.trained_share
            late = f", {share:.2%} of what it would" if told.lag_s and share is not None else ""
            yield (
                f"lease {lease.number} trained {told.steps:,} steps, {told.tokens:,} tokens{late}, "
                f"{told.joules:,.0f} J{loss}"
            )


def chips_text(chips: tuple[int, ...]) -> str:
    """Chips as `drain --chips` reads them; `-` for none."""
    if not chips:
        return "-"
    if len(chips) > 2 and chips == tuple(range(chips[0], chips[-1] + 1)):
        return f"{chips[0]}-{chips[-1]}"
    return ",".join(map(str, chips))


_GROUPS: Final[tuple[Column[GroupState], ...]] = (
    Column("group", lambda group: group.group, "d"),
    Column("chips", lambda group: chips_text(group.chips), align="left"),
    Column("phase", lambda group: group.phase, align="left"),
    Column("wanted", lambda group: group.desired, align="left"),
    Column("lease", lambda group: group.lease, "d"),
    Column("failures", lambda group: group.failures, "d"),
    Column("last failure", lambda group: group.trouble or None, align="left"),
)
_LEASES: Final[tuple[Column[LeaseState], ...]] = (
    Column("lease", lambda lease: lease.number, "d"),
    Column("chips", lambda lease: chips_text(lease.chips), align="left"),
    Column(
        "phase",
        lambda lease: "ended" if lease.phase == "serving" else lease.phase,
        align="left",
    ),
    Column("since", lambda lease: lease.since_emulated_s, ".3f", unit="s"),
    Column("ended", lambda lease: lease.drained_requests, "d"),
    Column("moved", lambda lease: lease.moved_requests, "d"),
    Column("experts", lambda lease: lease.experts_moved, ","),
    Column("links", lambda lease: lease.bytes_links, ",.3f", unit="GB", scale=GB),
    Column("storage", lambda lease: lease.bytes_storage, ",.3f", unit="GB", scale=GB),
    Column("drain", lambda lease: lease.drain_s * 1e3, ",.3f", unit="ms"),
    Column("experts", lambda lease: lease.experts_s * 1e3, ",.3f", unit="ms"),
    Column("vacate", lambda lease: lease.vacate_s * 1e3, ",.3f", unit="ms"),
    Column("restore", lambda lease: lease.restore_s * 1e3, ",.3f", unit="ms"),
    Column("warm", lambda lease: lease.warm_s * 1e3, ",.3f", unit="ms"),
    Column("J", lambda lease: lease.joules, ",.1f"),
)
