"""`ultraserve serve --replicas N`: what it refuses, and where each replica goes."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.access.listen_address import check_port
from serving.commands.gateway_arguments import GatewayOptions, console_port
from serving.policy.routing import DEFAULT_ROUTER, check_router
from serving.server.batch.batch_settings import BatchSettings
from serving.server.control.control_address import ControlAddress
from serving.server.replicas.drawn_ports import HOST
from serving.server.replicas.engine_silence import ENGINE_SILENT_S_MIN
from serving.server.replicas.replica_place import replica_places
from serving.server.replicas.replica_roles import KV_FLAG, parse_roles
from serving.settings import ClockSetting
from startup.typed_options import option, read_options

if TYPE_CHECKING:
    from serving.engine.deployment import Deployment
    from serving.server.replicas.kv_event_feed import KvRouting
    from serving.server.replicas.service_control import ControlPlace


_ROUTERS_OWN: Final = {
    "--kv-events-config": "none with --replicas: the router listens to the events itself",
    KV_FLAG: "none with --replicas: --replica-roles says which of them exchange KV",
}


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Several engines as one service."""

    GROUP = "several engines as one service"

    replicas: int | None = option(
        None,
        "serve by so many equal engines, started here, each on chips of its own, behind one "
        "address: routing, replay when one is lost, one key file (default: one engine, alone)",
    )
    router: str = option(
        DEFAULT_ROUTER,
        "where a request goes: prefix-aware (fewest tokens held, less those of its prompt that "
        "were sent there before), least-loaded or round-robin",
        metavar="NAME",
    )
    replica_roles: str | None = option(
        None,
        "what the replicas do, in their order: with prefill=1,decode=2 one computes prompts and "
        "hands their KV to two that decode; both=N do either. auto,prefill=1,decode=2 begins so "
        "and then follows the load; auto alone begins with half of the replicas for prompts "
        "(default: each does all, alone)",
        metavar="ROLE=N,...",
    )
    replica_silence: float = option(
        300.0,
        "wall seconds without an answer of its engine after which a replica is killed and started "
        "again: more than this machine computes at a step (default: 300)",
        metavar="S",
    )

    def __post_init__(self) -> None:
        check_router(self.router)
        if not ENGINE_SILENT_S_MIN <= self.replica_silence < float("inf"):
            expected = f"at least {ENGINE_SILENT_S_MIN:g} wall seconds: a question may take as long"
            raise ConfigError("replica_silence", self.replica_silence, expected)


def serve_service(
    args: argparse.Namespace,
    gateway: GatewayOptions,
    deployment: "Deployment",
    *,
    batches: BatchSettings,
    context: int,
    block_tokens: int,
    seats: int,
    step_tokens: int,
) -> int:
    """Serve by replicas until a signal; the exit code. `context` is --max-model-len, 0 for none,
    `block_tokens` --block-size, `seats` --max-num-seqs, `step_tokens` --max-num-batched-tokens.

    Raises ConfigError or PortInUse before anything has started, ServerFailed where no replica can
    start.
    """
    options = read_options(ServiceOptions, args)
    assert options.replicas is not None
    _refuse_others(args)
    settings = deployment.settings
    dilation = ClockSetting.parse(settings.clock).dilation
    if dilation is None:
        expected = "real or dilated:K with --replicas, which share limits and measurements"
        raise ConfigError("clock", settings.clock, expected)
    if settings.ray_node is not None:
        expected = "none with --replicas, which take the nodes by turns"
        raise ConfigError("ray_node", settings.ray_node, expected)
    roles = parse_roles(options.replica_roles, options.replicas)
    if roles is not None:
        _check_exchange(deployment)
    follows_load = roles is not None and roles.follow_load
    places = replica_places(
        settings,
        deployment.system,
        options.replicas,
        roles=None if roles is None else roles.first,
        control_port=args.control_port,
        console_port=console_port(args),
    )
    check_port(args.host, args.port)
    control = _control_place(args)
    if control is not None:
        host = args.control_host
        check_port(host, args.control_port, field="control_port", host_field="control_host")
        if control.console_port:
            check_port(host, control.console_port, field="console_port", host_field="control_host")
    for place in places:
        if place.control_port:
            check_port(HOST, place.control_port, field="control_port")
        if place.console_port:
            check_port(HOST, place.console_port, field="console_port")
    from serving.server.replicas.replica_service import ServiceSettings, serve_replicas

    model_tokens = deployment.time_model.max_context_tokens
    return serve_replicas(
        ServiceSettings(
            host=args.host,
            port=args.port,
            gateway=gateway.settings,
            places=places,
            words=tuple(args.words),
            router=options.router,
            dilation=dilation,
            context_tokens=min(context or model_tokens, model_tokens),
            control=control,
            silence_s_max=options.replica_silence,
            batches=batches,
            replica_seats=seats * settings.ranks,
            replica_step_tokens=step_tokens * settings.ranks if follows_load else None,
            kv_routing=_kv_routing(options, deployment, block_tokens, args.unknown),
        )
    )


def _check_exchange(deployment: "Deployment") -> None:
    """Raise ConfigError for what an engine that exchanges KV does not have."""
    settings, drafting = deployment.settings, deployment.drafting
    of_engine: tuple[tuple[str, object, object], ...] = (
        ("engine", settings.engine, "default"),
        ("prefill_ranks", settings.prefill_ranks, 0),
        ("num_speculative_tokens", 0 if drafting is None else drafting.tokens, 0),
    )
    for field, value, expected in of_engine:
        if value != expected:
            words = f"{expected} with --replica-roles, by which engines exchange KV"
            raise ConfigError(field, value, words)


def _refuse_others(args: argparse.Namespace) -> None:
    """Raise ConfigError for what a service of replicas does not have."""
    if args.grpc_port is not None:
        expected = "none with --replicas: gRPC goes through the public gateway (deploy/gateway)"
        raise ConfigError("grpc_port", args.grpc_port, expected)
    for word in args.unknown:
        flag = word.partition("=")[0].partition(".")[0].replace("_", "-")
        if flag in _ROUTERS_OWN:
            field = flag.removeprefix("--").replace("-", "_")
            raise ConfigError(field, word[:60], _ROUTERS_OWN[flag])


def _kv_routing(
    options: ServiceOptions, deployment: "Deployment", block_tokens: int, unknown: list[str]
) -> "KvRouting | None":
    """Routing by KV events, where there are any and prompts can be read."""
    from serving.server.replicas.kv_event_feed import KvRouting
    from serving.server.replicas.prompt_tokens import TOKENIZER_FILE

    weights_dir = deployment.weights_dir
    caches = "--no-enable-prefix-caching" not in [word.replace("_", "-") for word in unknown]
    publishes = deployment.settings.engine == "default" and caches
    if options.router != "prefix-aware" or not publishes:
        return None
    if not (weights_dir / TOKENIZER_FILE).is_file():
        return None
    return KvRouting(weights_dir=weights_dir, block_tokens=block_tokens)


def _control_place(args: argparse.Namespace) -> "ControlPlace | None":
    from serving.server.replicas.service_control import ControlPlace

    if not args.control_port:
        return None
    address = ControlAddress(host=args.control_host, port=args.control_port)
    return ControlPlace(address=address, console_port=console_port(args))
