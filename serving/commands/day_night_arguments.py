"""The day and night flags of `ultraserve serve`, and their settings."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from emulator.errors import ConfigError
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT
from loadgen.workloads.session_options import LENGTHS
from serving.commands.day import SLO
from serving.commands.drawn_lengths import mean_tokens
from serving.commands.leases import GRACE_S
from serving.policy.day_night.day_clock import DAY_S
from serving.policy.day_night.handover_settings import MANUAL, HandoverSettings, check_weighs
from serving.policy.day_night.night_work import NightOrder
from serving.policy.day_night.options import duration_s
from serving.policy.day_night.policy_text import parse_policy
from serving.server.day_night.day_night_settings import (
    PUBLISH,
    DayNightSettings,
    TrainingSettings,
)
from serving.server.training.job_spec import TrainingPace
from serving.settings import ClockSetting, Settings
from serving.traffic.slo import parse_slo
from startup.typed_options import add_options, option

if TYPE_CHECKING:
    from emulator.ultraserver.machine import Machine
    from serving.analysis.steady_state.request_shape import RequestShape

SettingsT = TypeVar("SettingsT", bound=HandoverSettings)
DIRECTORY: Final = "ultraserve-training"
NEEDS: Final = "--day-night or --schedule with it"


@dataclass(frozen=True, kw_only=True)
class HandoverOptions:
    """The policy, and how chips change hands."""

    GROUP = "day and night: chips that demand does not need train a model, and come back"

    day_night: str | None = option(
        None,
        "who decides: schedule:22:00-06:00@ZONE, demand, quantile:0.99, erlang, price:FILE, "
        "carbon:FILE, python:FILE.py:FUNCTION, fixed:GROUPS, never or manual "
        "(default: chips only serve)",
        metavar="POLICY",
    )
    schedule: str | None = option(
        None, "the same as --day-night schedule:...", metavar="HH:MM-HH:MM[@ZONE]"
    )
    day_length: str | None = option(
        None, "emulated seconds of a day, such as 120s or 24h (default: 24h)", metavar="S"
    )
    day_start: str | None = option(
        None,
        "the time of day at the start (default: what the clock on the wall says)",
        metavar="HH:MM[@ZONE]",
    )
    group_chips: int | None = option(
        None,
        "chips that change hands together, whole ranks whose HBM holds a training state "
        "(default: the fewest that do)",
    )
    lend_chips: int | None = option(None, "at most so many train (default: half)")
    drain_grace: str | None = option(
        None,
        "emulated seconds that running requests of leaving chips have to end before they go on "
        f"elsewhere (default: {GRACE_S:g}s)",
        metavar="S",
    )


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The promise to requests, and a group's rate within it."""

    GROUP = "what a group serves: by which policies keep as many groups as the load needs"

    slo: str | None = option(None, f"of TTFT and TPOT, emulated (default: {SLO})", metavar="TARGET")
    input: str | None = option(
        None,
        f"tokens of a request's prompt, of several lengths their mean (default: {INPUT})",
        metavar=LENGTHS,
    )
    output: str | None = option(
        None, f"tokens of its reply, written likewise (default: {OUTPUT})", metavar=LENGTHS
    )
    group_requests_per_s: float | None = option(
        None,
        "requests that a group serves in an emulated second within the target (default: from the "
        "cost model, of requests of --input and --output)",
        "--group-requests-per-s",
        metavar="R",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The training job."""

    GROUP = "training: what leased chips do; see `ultraserve train`"

    train_dir: str | None = option(
        None, f"where the job and its checkpoints live (default: {DIRECTORY})", metavar="DIR"
    )
    train_corpus: str | None = option(
        None, "text to train on (default: the running Python's standard library)", metavar="DIR"
    )
    train_learning_rate: float | None = option(
        None, "the highest (default: the job's)", metavar="R"
    )
    train_pace: str | None = option(
        None,
        "real: every step is computed, late where this host is slow (default); fast-forward: the "
        "emulated chips train by the clock as the cost model says, and what this host computes "
        "meanwhile is a sample of it",
        choices=[each.value for each in TrainingPace],
    )
    publish: str | None = option(
        None,
        "if-better: when all groups are called back, the night's weights are served if their "
        "held-out loss is lower (default: never)",
        choices=PUBLISH,
    )


@dataclass(frozen=True, kw_only=True)
class NightWorkOptions:
    """What free groups do, on a server with batches."""

    GROUP = "the night's work: batches, training, or both"

    night_work: NightOrder | None = option(
        None,
        "who has free groups first: batch,training or training,batch; or batch: nothing trains "
        f"(default: {NightOrder.BATCH_FIRST}, with --batch-directory)",
    )


GivenOptions = argparse.Namespace | HandoverOptions
_GROUPS: Final = (HandoverOptions, TargetOptions, TrainingOptions, NightWorkOptions)


def add_day_night_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    for kind in _GROUPS:
        add_options(parser, kind)


def check_group_chips(given: int | None, tp: int) -> None:
    """Raise ConfigError for a group that is not whole ranks."""
    if given is not None and (given < 1 or given % tp):
        raise ConfigError("group_chips", given, f"whole ranks of {tp} chips")


def day_night_settings(
    args: argparse.Namespace, served: Settings, weights_dir: Path
) -> DayNightSettings | None:
    """How chips change hands, or None; raises ConfigError for contradictory or wrong flags."""
    policy = policy_of(args)
    if policy is None:
        for name in (each.name for kind in _GROUPS for each in fields(kind)):
            if getattr(args, name) is not None:
                raise ConfigError(name, getattr(args, name), NEEDS)
        return None
    if not args.control_port:
        raise ConfigError("control_port", 0, "a port: day and night is controlled by it")
    check_group_chips(args.group_chips, served.tp)
    group_chips = args.group_chips or served.tp
    return DayNightSettings(
        policy=policy,
        day_length_s=duration_of(args, "day_length", DAY_S),
        day_start=args.day_start or "now",
        zone=zone_of(policy),
        chips=served.chips,
        group_chips=group_chips,
        lend_groups=lend_groups(args.lend_chips, served.chips, group_chips),
        grace_s=duration_of(args, "drain_grace", GRACE_S),
        slo=parse_slo(args.slo or SLO),
        group_requests_per_s=args.group_requests_per_s,
        group_requests_source="" if args.group_requests_per_s is None else "as it was said",
        reading_s=0.0,
        publish=args.publish or "never",
        night_order=args.night_work or NightOrder.BATCH_FIRST,
        training=TrainingSettings(
            directory=_directory(args.train_dir or DIRECTORY),
            weights_dir=weights_dir.absolute(),
            corpus_dir=None if args.train_corpus is None else _corpus(args.train_corpus),
            learning_rate=args.train_learning_rate,
            system=served.system,
            model=served.model,
            first_chip=served.first_chip,
            ray_address=served.ray_address,
            assumptions=tuple(served.assumptions),
            pace=_pace(args.train_pace, served.clock),
            calibration=served.calibration,
            lnc=served.lnc,
        ),
    )


def _pace(given: str | None, clock: str) -> TrainingPace:
    pace = TrainingPace(given or TrainingPace.REAL)
    if pace is TrainingPace.FAST_FORWARD and ClockSetting.parse(clock).kind == "virtual":
        raise ConfigError("train_pace", pace, "real beside a virtual clock")
    return pace


def with_cost_model(
    settings: SettingsT,
    args: argparse.Namespace,
    machine: Machine,
    *,
    seats: int,
    utilization: float,
) -> SettingsT:
    """The settings with a group's chips and rate by the cost model, unless given.

    `seats` is a rank's most requests at once. Raises ConfigError for groups that cannot hold a
    training state, and for a target kept at no rate under a policy that needs one.
    """
    from serving.analysis.steady_state.request_shape import RequestShape

    shape = RequestShape(
        prompt_tokens=mean_tokens("input", args.input or INPUT),
        output_tokens=mean_tokens("output", args.output or OUTPUT),
    )
    return with_group_rate(
        with_training_groups(settings, args, machine),
        machine,
        shape,
        seats=seats,
        utilization=utilization,
    )


def with_group_rate(
    settings: SettingsT,
    machine: Machine,
    shape: RequestShape,
    *,
    seats: int,
    utilization: float,
) -> SettingsT:
    """The settings with the time that a group of `machine` takes to read its weights, and its rate
    unless given. A group of all its chips is beside others. Raises as `with_cost_model`.
    """
    from serving.analysis.steady_state.group_capacity import (
        QUEUE_SHARE,
        group_reading_s,
        group_requests_per_s,
    )

    group_chips = settings.group_chips
    settings = replace(settings, reading_s=group_reading_s(machine, group_chips=group_chips))
    if settings.group_requests_per_s is not None:
        return settings
    rate = group_requests_per_s(
        machine,
        slo=settings.slo,
        shape=shape,
        seats=seats,
        utilization=utilization,
        group_chips=group_chips,
        lend_groups=0 if group_chips == machine.partition.chips else settings.lend_groups,
    )
    if rate is None:
        check_weighs(settings.policy, rate)
        return settings
    source = (
        f"from the cost model, {shape.prompt_tokens:,} + {shape.output_tokens:,} tokens a request; "
        f"assumed: queues leave {QUEUE_SHARE:.0%} of the steady state's rate"
    )
    return replace(settings, group_requests_per_s=rate, group_requests_source=source)


def with_training_groups(settings: SettingsT, args: GivenOptions, machine: Machine) -> SettingsT:
    """The settings with groups of `machine` that hold a training state; raises ConfigError."""
    from serving.analysis.steady_state.group_capacity import fewest_training_chips

    fewest = fewest_training_chips(machine)
    name, half = machine.model.name, settings.chips // 2
    if fewest is None:
        expected = f"more: a training state of {name} does not fit into {half}, half of them"
        raise ConfigError("chips", settings.chips, expected)
    if args.group_chips is None:
        lends = lend_groups(args.lend_chips, settings.chips, fewest)
        return replace(settings, group_chips=fewest, lend_groups=lends)
    if settings.group_chips < fewest:
        expected = f"at least {fewest}, into which a training state of {name} fits"
        raise ConfigError("group_chips", settings.group_chips, expected)
    return settings


def policy_of(args: GivenOptions) -> str | None:
    """The policy's text, or None; raises ConfigError for two."""
    policy: str | None = args.day_night
    if args.schedule is None:
        return policy
    spelled = f"schedule:{args.schedule}"
    if policy not in (None, spelled):
        raise ConfigError("schedule", args.schedule, f"one policy, not {policy}")
    return spelled


def zone_of(policy: str) -> str:
    """The time zone of the policy's hours; UTC without one."""
    if policy == MANUAL:
        return "UTC"
    return str(getattr(parse_policy(policy), "zone", "UTC"))


def lend_groups(lend_chips: int | None, chips: int, group_chips: int) -> int:
    """Groups that may train at a time; raises ConfigError."""
    if lend_chips is None:
        return max(1, chips // group_chips // 2)
    if lend_chips < 1 or lend_chips % group_chips:
        raise ConfigError("lend_chips", lend_chips, f"whole groups of {group_chips} chips")
    return lend_chips // group_chips


def duration_of(args: GivenOptions, name: str, default: float) -> float:
    """Seconds of the option `name`; raises ConfigError."""
    text = getattr(args, name)
    return default if text is None else duration_s(text, field=name)


def _directory(text: str) -> Path:
    """A directory for a job, not made here; raises ConfigError."""
    path = Path(text).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError("train_dir", text, "a directory that can be made and written to")
    return path


def _corpus(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError("train_corpus", text, "a folder of text files")
    return path
