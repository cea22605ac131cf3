"""Several engines as one service: a process that starts them and answers at one address.

Keys, limits and the bounds of connections are here, once for all replicas; they listen on loopback,
for a key of this run. At SIGTERM the service takes nothing new, waits for its requests, then ends
its replicas; SIGINT gives no time, a second signal kills.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from serving.access.key_ring import KeyReload, KeyRing
from serving.access.private_file import replace_file
from serving.access.secret import draw_secret
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.refusal import RefusalReason
from serving.policy.admission.work import Client
from serving.policy.rank_roles import RoleDecider
from serving.server.batch.batch_api import BatchApi
from serving.server.batch.batch_parts import make_batches
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.http.asgi import (
    NO_STORE,
    Headers,
    Receive,
    Scope,
    Send,
    body_headers,
    path_of,
    respond,
)
from serving.server.gateway.http.bounded_server import bound_server, measured_ingress
from serving.server.gateway.http.http_errors import HttpError, HttpRefused
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.request_body import BodyReader
from serving.server.gateway.http.request_work import ContextSize
from serving.server.gateway.kv_params import KvParams
from serving.server.replicas.drawn_ports import DrawnPorts
from serving.server.replicas.kv_event_feed import KvEventFeed, KvRouting
from serving.server.replicas.live_replicas import ENGINE_SILENT_S_MAX, LiveReplicas
from serving.server.replicas.replica_list import PATH as LIST_PATH
from serving.server.replicas.replica_metrics import ReplicaMetrics
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_process import CONTROL_KEY_FLAG, ReplicaProcess
from serving.server.replicas.replica_proxy import ReplicaProxy
from serving.server.replicas.replica_readiness import ReplicaReadiness
from serving.server.replicas.replica_roles import exchange_words
from serving.server.replicas.role_changes import RoleChanges
from serving.server.replicas.service_control import ControlPlace, ServiceControl
from serving.telemetry.gateway_metrics import GatewayMetrics

logger = logging.getLogger("ultraserve.replicas")

_KEEP_ALIVE_S: Final = 75
"""As vLLM's server has it here: longer than clients keep an idle connection."""

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 3
"""Wall seconds until connections whose clients do not read are cut; whole ones, for uvicorn."""

_SEED_BITS: Final = 31
_TWICE: Final = 2
_MANY: Final = 2**40
_METRICS: Final = "/metrics"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """A service of replicas.

    Attributes:
        words: of the command line, by which each replica is started.
        dilation: wall seconds of an emulated one, of all replicas; limits of a minute go by it.
        context_tokens: of the model.
        control: where the control service and the console are; None: nowhere.
        batches: of the service; without a directory none.
        replica_seats: sequences that a replica has room for, by which batches are sent.
        replica_step_tokens: prompt tokens that a replica computes in a step, by which roles follow
            the load; None: they do not.
        silence_s_max: wall seconds without an answer of its engine until a replica is killed.
        kv_routing: None: a router that goes by prompts guesses what replicas hold.
    """

    host: str
    port: int
    gateway: GatewaySettings
    places: tuple[ReplicaPlace, ...]
    words: tuple[str, ...]
    router: str
    dilation: float
    context_tokens: int
    control: ControlPlace | None = None
    kv_routing: KvRouting | None = None
    silence_s_max: float = ENGINE_SILENT_S_MAX
    batches: BatchSettings = field(default_factory=BatchSettings)
    replica_seats: int = 1
    replica_step_tokens: int | None = None


def serve_replicas(settings: ServiceSettings) -> int:
    """Serve until a signal; the exit code. Raises ServerFailed where no replica can start."""
    logging.basicConfig(
        level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s"
    )
    return uvloop.run(_serve(settings))


async def _serve(settings: ServiceSettings) -> int:
    # 0700: keys and sockets of this run are in it.
    with tempfile.TemporaryDirectory(prefix="us-replicas-", ignore_cleanup_errors=True) as name:
        return await _serve_in(Path(name), settings)


async def _serve_in(directory: Path, settings: ServiceSettings) -> int:
    key = draw_secret()
    key_file = directory / "control.key"
    replace_file(key_file, f"{key}\n".encode())
    kv_key_file = directory / "kv.key"
    replace_file(kv_key_file, f"{draw_secret()}\n".encode())
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        headers={"Authorization": f"Bearer {key}"},
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        auto_decompress=False,
        trust_env=False,
    )
    async with session:
        feed = None if settings.kv_routing is None else KvEventFeed(settings.kv_routing, directory)
        ports = DrawnPorts(_own_ports(settings))
        processes = [
            ReplicaProcess(
                settings.words,
                place,
                key=key,
                environment=os.environ,
                ports=ports,
                more=[
                    *(CONTROL_KEY_FLAG, str(key_file)),
                    *([] if feed is None else feed.words(place.number)),
                    *([] if place.role is None else exchange_words(str(kv_key_file), place.number)),
                ],
            )
            for place in settings.places
        ]
        live = LiveReplicas(
            settings.places,
            processes,
            session,
            router=settings.router,
            silence_s_max=settings.silence_s_max,
        )
        live.feed = feed
        service = ReplicaService(settings, live, session, key=key)
        live.start()
        try:
            return await service.run()
        finally:
            await live.stop(at_once=service.ends_at_once)


def _own_ports(settings: ServiceSettings) -> Iterator[int]:
    """Those that were asked for, of the service and its replicas."""
    yield settings.port
    if settings.control is not None:
        yield settings.control.address.port
        yield settings.control.console_port
    for place in settings.places:
        yield place.control_port
        yield place.console_port


def _server_config(app: HttpGateway, settings: ServiceSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    config.load()
    return config


def _role_changes(settings: ServiceSettings, live: LiveReplicas) -> RoleChanges:
    """An operator's, and the load's where it is to change roles, and each that is ready shares."""
    decider = None
    if settings.replica_step_tokens is not None:
        decider = RoleDecider(
            step_tokens=settings.replica_step_tokens, seats=settings.replica_seats
        )
    changes = RoleChanges(live, decider, dilation=settings.dilation)
    live.came = changes.share_with
    return changes


class ReplicaService:
    """The gateway before `live`, and its end; `key` is what replicas ask of this process alone."""

    def __init__(
        self,
        settings: ServiceSettings,
        live: LiveReplicas,
        session: aiohttp.ClientSession,
        *,
        key: str,
    ) -> None:
        gateway, registry = settings.gateway, CollectorRegistry()
        self._live = live
        self._drain_wall_s_max = gateway.drain_wall_s_max
        self.roles = _role_changes(settings, live)
        change = self.roles.change if live.have_roles else None
        self._control = ServiceControl(
            settings.control, gateway, live.all, session, key=key, change_role=change
        )
        live.prepare = self._control.publish_again
        live.engine_age_s = self._control.engine_age_s
        self._keys = KeyRing(
            key_file=gateway.key_file,
            key_hashes=gateway.key_hashes,
            control_secret=self._control.open(),
        )
        # Replicas bound what runs, and have the queue of batch work: each knows its own room.
        capacity = Capacity(
            seats=_MANY,
            kv_tokens=_MANY,
            prefill_tokens_per_step=_MANY,
            dilation=settings.dilation,
        )
        self._admission = AdmissionController(
            gateway.limits, lambda: capacity, metrics=GatewayMetrics(registry)
        )
        account = measured_ingress(gateway, registry)
        metrics = ReplicaMetrics(registry)
        seeds = random.SystemRandom()
        bodies = BodyReader(bytes_max=gateway.body_bytes_max, account=account)
        http = HttpGateway(
            ReplicaProxy(live, session, metrics, lambda: seeds.getrandbits(_SEED_BITS)),
            keys=self._keys,
            admission=self._admission,
            readiness=ReplicaReadiness(live, lambda: self._admission.closed),
            bodies=bodies,
            context=ContextSize(settings.context_tokens),
            request_wall_s_max=gateway.request_wall_s_max,
        )
        if live.have_roles:
            http.kv_params = KvParams.REFUSED
        batch_api: BatchApi | None = None
        self._batches: BatchRunner | None = None
        if settings.batches.batch_directory is not None:
            self._batches, batch_api = make_batches(
                settings.batches,
                app=None,
                ask=http.answer_inner,
                keys=self._keys,
                bodies=bodies,
                body_bytes_max=gateway.body_bytes_max,
                seats=lambda: settings.replica_seats * len(live.ready_to_decode or live.ready),
                registry=registry,
            )
        http.beside = ServicePages(live, metrics, session, self._control, batch_api)
        config = _server_config(http, settings)
        bound_server(config, gateway, account, self._keys)
        self._server = _Server(config)
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._code = 0

    @property
    def ends_at_once(self) -> bool:
        """Whether a second signal has come."""
        return self._signals >= _TWICE

    async def run(self) -> int:
        """Serve until the end; the exit code. Raises ServerFailed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear, number)
        reload = KeyReload(self._keys)
        await reload.start()
        self._live.failed.add_done_callback(lambda _: self._leave())
        roles = loop.create_task(self._live.or_fail(self.roles.follow_load, "roles are"))
        try:
            await self._control.start(self._keys)
            if self._batches is not None:
                await self._batches.start()
            await self._server.serve()
        finally:
            roles.cancel()
            await self._stop_batches()
            await self._control.stop()
            await reload.stop()
        if self._live.failed.done():
            self._live.failed.result()
        return self._code

    def _hear(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            wall_s = self._drain_wall_s_max if number == signal.SIGTERM else 0.0
            logger.info("%s: the service ends, its requests have %g s", number.name, wall_s)
            self._ending = asyncio.get_running_loop().create_task(self._end(wall_s))
        else:
            self._code = 128 + number
            self._server.force_exit = True
            self._leave()

    async def _end(self, wall_s: float) -> None:
        await self._stop_batches()  # the next service goes on with them
        reason = RefusalReason.DRAINING
        self._admission.close(reason, "the server is ending", retry_after_s=max(wall_s, 1.0))
        await self._admission.empty(wall_s)
        self._leave()

    async def _stop_batches(self) -> None:
        if self._batches is not None:
            await self._batches.stop()

    def _leave(self) -> None:
        self._server.config.timeout_graceful_shutdown = _CLOSE_S
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server, without its handlers of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service."""
        yield


class ServicePages:
    """Pages of the service itself, beside the replicas' app."""

    def __init__(
        self,
        live: LiveReplicas,
        metrics: ReplicaMetrics,
        session: aiohttp.ClientSession,
        control: ServiceControl,
        batches: BatchApi | None,
    ) -> None:
        self._live = live
        self._batches = batches
        self._control = control
        self._metrics = metrics
        self._session = session

    def has(self, path: str) -> bool:
        """Whether the path is one of its own."""
        return path in (_METRICS, LIST_PATH) or self._has_batch(path)

    def _has_batch(self, path: str) -> bool:
        return self._batches is not None and self._batches.has(path)

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, *, client: Client, headers: Headers
    ) -> None:
        """Answer a GET, or what batches are asked; raises HttpRefused for another method."""
        path = path_of(scope)
        if self._batches is not None and self._has_batch(path):
            await self._batches.answer(scope, receive, send, client=client, headers=headers)
            return
        if scope["method"] not in ("GET", "HEAD"):
            status, words = HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes GET"
            raise HttpRefused(HttpError(status, "method_not_allowed", words, allows="GET, HEAD"))
        if path == _METRICS:
            body = await self._metrics.page(self._live, self._session)
            kind = _TEXT
        else:
            body, kind = await self._control.listed(), b"application/json"
        await respond(send, HTTPStatus.OK, [*body_headers(body, kind), NO_STORE, *headers], body)
