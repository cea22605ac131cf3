"""`ultraserve serve`: vLLM's own OpenAI server on emulated chips.

Known flags fill the platform's settings, all others go to vLLM's parser. Errors are checked first
here, so that each is one line and nothing has started.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from emulator.errors import ConfigError
from emulator.memory.core_claims import CoreClaim, claims_directory
from serving.access.control_claim import claimed_control_port, control_lock_path
from serving.access.control_key import console_port_path, control_key_path
from serving.access.listen_address import check_port
from serving.access.process_listing import API_KEY_FLAG, hide_in_process_list
from serving.commands.day_night_arguments import day_night_settings, with_cost_model
from serving.commands.gateway_arguments import (
    GatewayOptions,
    console_port,
    gateway_options,
)
from serving.commands.serve_arguments import add_arguments, resolve_arguments
from serving.commands.serve_front import resolve_front
from serving.commands.serve_replicas import serve_service
from serving.server.batch.batch_settings import LOCK as BATCH_LOCK
from serving.server.batch.batch_settings import BatchSettings
from serving.server.control.control_address import ENVIRONMENT as CONTROL_ENVIRONMENT
from serving.server.control.control_address import MIDDLEWARE, NO_SERVICE, ControlAddress
from serving.settings import Settings
from serving.traffic.engine_limits import HBM_SHARE, SchedulerLimits
from startup.typed_options import read_options

if TYPE_CHECKING:
    from serving.engine.deployment import Deployment


_SAVE_S: Final = 20.0
"""Wall seconds for a job of an earlier server to save."""

_Value = TypeVar("_Value", int, float, str)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `serve` command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model on emulated chips through vLLM's OpenAI server",
        description="Serve on emulated chips through vLLM's own OpenAI server. Arguments that are "
        "not listed here go through to `vllm serve`. A model may be given first, without --model.",
        epilog="Example: ultraserve serve --model qwen3-30b-a3b --chips 16 --tp 2 --port 8000",
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.set_defaults(run=run, passes_through=True)


def run(args: argparse.Namespace) -> int:
    """Check, then run vLLM's server in this process. Raises UltraServeError."""
    hide_in_process_list(flags=(API_KEY_FLAG,))
    settings, weights_dir = resolve_arguments(args)
    gateway = gateway_options(args, os.environ)
    batches = batch_settings(args)
    day_night = day_night_settings(args, settings, weights_dir)
    if settings.engine == "fast" and day_night is not None and day_night.publish != "never":
        raise ConfigError("publish", day_night.publish, "never with --engine fast")
    # vLLM takes seconds to import; wrong settings are told before.
    deployment = _deployment(settings, weights_dir, args.unknown)
    utilization = _peeked(args.unknown, "--gpu-memory-utilization", HBM_SHARE)
    machine = deployment.machine(utilization)  # refuses a model that does not fit
    if settings.computes and settings.ray_address is None:  # a cluster has other hosts too
        deployment.host_need.check(psutil.virtual_memory().available)
    seats = max(1, _peeked(args.unknown, "--max-num-seqs", SchedulerLimits.max_num_seqs))
    if day_night is not None:
        day_night = with_cost_model(day_night, args, machine, seats=seats, utilization=utilization)
    _check_processes(args, gateway, batches)
    front = resolve_front(args, gateway, deployment, seats=seats)
    for warning in gateway.warnings:
        print(f"ultraserve serve: {warning}", file=sys.stderr)
    if args.replicas is not None:
        if day_night is not None:
            expected = "none with --day-night, which lends chips of one engine"
            raise ConfigError("replicas", args.replicas, expected)
        tokens = SchedulerLimits.max_num_batched_tokens
        with held_batches(batches):
            return serve_service(
                args,
                gateway,
                deployment,
                batches=batches,
                context=_peeked(args.unknown, "--max-model-len", 0),
                block_tokens=_peeked(args.unknown, "--block-size", SchedulerLimits.block_tokens),
                seats=seats,
                step_tokens=max(1, _peeked(args.unknown, "--max-num-batched-tokens", tokens)),
            )
    check_ports(args)
    os.environ |= _environment(args, gateway)
    from serving.plugin.openai_app import serve
    from serving.server.day_night.job_record import held_directory

    with contextlib.ExitStack() as held:
        held.enter_context(claimed_cores(deployment))
        if day_night is not None:
            held.enter_context(held_directory(day_night.training.directory, save_s=_SAVE_S))
            os.environ |= day_night.to_environment()
        held.enter_context(held_batches(batches))
        os.environ |= batches.to_environment()
        if args.control_port and gateway.settings.control_key_file is None:
            held.enter_context(kept_control_key(args.control_port))
        vllm_arguments = [*gateway.vllm_arguments(), *args.unknown, "--middleware", MIDDLEWARE]
        return serve(
            deployment,
            host=args.host,
            port=args.port,
            vllm_arguments=vllm_arguments,
            given_arguments=args.unknown,
            api_processes=gateway.settings.api_server_count,
            front=front,
        )


def _check_processes(
    args: argparse.Namespace, gateway: GatewayOptions, batches: BatchSettings
) -> None:
    """Raise ConfigError for what goes with one API process alone, or with several engines alone."""
    if args.replica_roles is not None and args.replicas is None:
        raise ConfigError("replica_roles", args.replica_roles, "--replicas with it")
    count = gateway.settings.api_server_count
    if count > 1 and args.replicas is not None:
        expected = "1 with --replicas, which is one process before several engines"
        raise ConfigError("api_server_count", count, expected)
    if count > 1 and batches.batch_directory is not None:
        expected = "1 with --batch-directory, whose files one process takes"
        raise ConfigError("api_server_count", count, expected)


def batch_settings(args: argparse.Namespace) -> BatchSettings:
    """The settings of batches; raises ConfigError for a wrong one, or one without a directory."""
    settings = read_options(BatchSettings, args)
    if settings.batch_directory is None:
        if args.night_work is not None:
            raise ConfigError("night_work", args.night_work, "--batch-directory with it")
        if settings != BatchSettings():
            raise ConfigError("batch_directory", "(none)", "a directory with the other --batch-*")
        return settings
    return replace(settings, batch_directory=settings.batch_directory.expanduser().absolute())


@contextlib.contextmanager
def held_batches(settings: BatchSettings) -> Iterator[None]:
    """Hold the directory of batches, if any, against other servers; raises ConfigError."""
    from serving.server.training.atomic_file import locked_directory

    if settings.batch_directory is None:
        yield
        return
    use = "no other server runs batches"
    with locked_directory(settings.batch_directory, BATCH_LOCK, field="batch_directory", use=use):
        yield


def _environment(args: argparse.Namespace, gateway: GatewayOptions) -> dict[str, str]:
    """Variables for the middleware in vLLM's API process."""
    address = NO_SERVICE
    if args.control_port:
        address = str(ControlAddress(host=args.control_host, port=args.control_port))
    return {**gateway.settings.to_environment(), CONTROL_ENVIRONMENT: address}


def check_ports(args: argparse.Namespace) -> None:
    """Raise ConfigError or PortInUse for an unusable port."""
    check_port(args.host, args.port)
    if args.grpc_port is not None:
        check_port(args.host, args.grpc_port, field="grpc_port")
    if args.front is not None:
        check_port(args.host, args.front_port, field="front_port")
        check_port("127.0.0.1", args.front_metrics_port, field="front_metrics_port")
    if args.control_port:
        check_port(
            args.control_host, args.control_port, field="control_port", host_field="control_host"
        )
    if port := console_port(args):
        check_port(args.control_host, port, field="console_port", host_field="control_host")


@contextlib.contextmanager
def claimed_cores(deployment: "Deployment") -> Iterator[None]:
    """Hold cores given by number against other servers here; raises NeuronError if taken."""
    if not deployment.settings.exclusive_cores:
        yield
        return
    partition, chip = deployment.partition, deployment.system.chip
    claim = CoreClaim(
        system=deployment.system.name,
        ultraserver=deployment.settings.ultraserver,
        first_chip=partition.first_chip,
        chips=partition.chips,
        cores_per_chip=chip.logical_cores(partition.lnc),
        directory=claims_directory(os.environ),
    )
    try:
        yield
    finally:
        claim.release()


@contextlib.contextmanager
def kept_control_key(port: int) -> Iterator[None]:
    """Hold the control port, and so the key's file; raises ConfigError if another server does."""
    from serving.process.parent_death_watchdog import cleared_by_engine

    lock = control_lock_path(port, os.environ)
    with (
        claimed_control_port(port, os.environ),
        cleared_by_engine(control_key_path(port, os.environ), unless_held=lock),
        cleared_by_engine(console_port_path(port, os.environ), unless_held=lock),
    ):
        yield


def _deployment(settings: Settings, weights_dir: Path, vllm_arguments: list[str]) -> "Deployment":
    """What is served; raises ConfigError for a tokenizer that is code and not trusted."""
    from serving.engine.deployment import resolve_deployment
    from serving.plugin.tokenizer_code import check_tokenizer_code

    deployment = _with_drafts(resolve_deployment(settings, weights_dir), vllm_arguments)
    check_tokenizer_code(deployment.weights_dir, vllm_arguments)
    return deployment


def _with_drafts(deployment: "Deployment", vllm_arguments: list[str]) -> "Deployment":
    """With the drafts of vLLM's `--speculative-config`; its parser tells what is malformed."""
    from serving.engine.deployment import with_drafts

    try:
        config = json.loads(_peeked(vllm_arguments, "--speculative-config", ""))
    except ValueError:
        return deployment
    tokens = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    if type(tokens) is not int:
        return deployment
    model = config.get("model")
    method = config.get("method") or ("ngram" if model == "ngram" else "draft_model")
    return with_drafts(deployment, str(method), tokens, model)


def _peeked(vllm_arguments: list[str], flag: str, default: _Value) -> _Value:
    """A value among vLLM's flags; `default` when absent or malformed."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument(
        flag,
        f"--{flag[2:].replace('-', '_')}",
        type=type(default),
        default=default,
        dest="value",
    )
    try:
        value: _Value = parser.parse_known_args(vllm_arguments)[0].value
    except argparse.ArgumentError:
        return default  # vLLM's parser tells what is wrong with it
    return value
