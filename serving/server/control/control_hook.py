"""ASGI middleware: puts the gateway before vLLM's HTTP app and runs the services beside it.

`vllm serve --middleware serving.server.control.control_hook.ControlHook` wraps vLLM's unchanged app
and sees its lifespan. By then the app holds the engine's client, and the loop is the client's.
"""

import logging
import os
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

from serving.access.control_key import held_control_key, noted_console_port
from serving.plugin.direct_streams import join_streams, read_environment_once
from serving.plugin.request_spans import extend_spans
from serving.plugin.response_model_version import begin_response, name_weights_in_responses
from serving.plugin.stat_logger import latencies, stat_logger_of
from serving.plugin.unseen_tokens import leave_out_unseen_tokens
from serving.process.api_processes import ApiProcesses
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.batch.served_batches import serve_batches
from serving.server.control.control_address import ENVIRONMENT, NO_SERVICE, ControlAddress
from serving.server.control.control_server import ControlServer, ServerParts
from serving.server.day_night.controller import DayNight
from serving.server.day_night.day_night_settings import DayNightSettings
from serving.server.day_night.job_process import job_commands
from serving.server.gateway.gateway import Gateway, LentGateway, Service
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.http.asgi import App, Message, Receive, Scope, Send
from serving.server.gateway.http.http_refusals import missing_paths
from serving.server.gateway.http.open_api import describe_app

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")


class ControlHook:
    """The app's gateway and services; responses name their model version
    (`response_model_version`).

    Settings: `ULTRASERVE_GATEWAY`, `ULTRASERVE_CONTROL_ADDRESS`, `ULTRASERVE_DAY_NIGHT`,
    `ULTRASERVE_BATCH`, `ULTRASERVE_API_PROCESSES`. One per API process; of several the first has
    the services. The app's start raises ConfigError, PortInUse.
    """

    passes_bodies = True  # as `direct_streams` asks of a middleware

    def __init__(self, app: App) -> None:
        self._app = app
        self._http: App = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the app's lifespan."""
        if scope["type"] != "lifespan":
            begin_response()
            await self._http(scope, receive, send)
            return
        services: list[Service] = []
        held = ExitStack()

        async def start_and_send(message: Message) -> None:
            # What fails here fails in the app's own start, which uvicorn then reports; before the
            # app has begun, uvicorn would take an error for an app that knows no lifespan.
            if message["type"] == "lifespan.startup.complete":
                services.extend(self._open(scope["app"], held))
                for service in services:
                    await service.start()
            await send(message)

        async def receive_and_stop() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await _stop(services)
            return message

        try:
            await self._app(scope, receive_and_stop, start_and_send)
        finally:
            try:
                await _stop(services)
            finally:
                held.close()

    def _open(self, app: Any, held: ExitStack) -> list[Service]:
        """Put the gateway before the app; returns the services, in start order.

        The control key stays in its file until `held` is closed.
        """
        read_environment_once()
        state = app.state
        engine = state.engine_client
        name_weights_in_responses(engine)
        extend_spans(engine)
        join_streams(state)
        leave_out_unseen_tokens(engine)
        settings = GatewaySettings.from_environment(os.environ)
        processes = ApiProcesses.from_environment(os.environ)
        if processes is not None and not processes.is_first:
            lent = LentGateway(engine, settings, processes)
            self._http = lent.before(self._app, missing=missing_paths(state))
            describe_app(app, version=version("ultraserve"), needs_key=not lent.keys.is_open)
            return lent.services(state.server)
        address = _control_address()
        secret = None
        if address is not None:
            key_file = settings.control_key_file
            secret = held.enter_context(
                held_control_key(address.port, os.environ, key_file=key_file)
            )
            console = address.console(settings.console_port) if settings.console_port != 0 else None
            if console is not None:
                held.enter_context(noted_console_port(address.port, console.port, os.environ))
        gateway = Gateway(engine, settings, control_secret=secret, processes=processes)
        self._http = http = gateway.before(self._app, missing=missing_paths(state))
        describe_app(app, version=version("ultraserve"), needs_key=not gateway.keys.is_open)
        services = gateway.services(state.server)
        batch_settings = BatchSettings.from_environment(os.environ)
        batches = None
        if batch_settings.batch_directory is not None:
            batches = serve_batches(gateway, http, app, batch_settings)
        day_night = _day_night(engine, gateway, batches)
        if address is not None:
            services.append(
                ControlServer(
                    engine,
                    address,
                    ServerParts(
                        day_night=day_night,
                        admission=gateway.admission,
                        latencies=latencies(engine),
                        hardware=gateway.hardware,
                        console_port=settings.console_port,
                    ),
                    admits=gateway.keys.admits_control,
                    named=gateway.keys.name_of,
                    tls=settings.tls,
                )
            )
        if day_night is not None:
            services.append(day_night)
        if batches is not None:
            services.append(batches)
        return services


async def _stop(services: list[Service]) -> None:
    """Stop all, the last first; then raises the first failure."""
    failure: Exception | None = None
    for service in reversed(services):
        try:
            await service.stop()
        except Exception as error:
            logger.exception("%s did not stop", type(service).__name__)
            failure = failure or error
    if failure is not None:
        raise failure


def _control_address() -> ControlAddress | None:
    address = os.environ.get(ENVIRONMENT, str(ControlAddress()))
    return None if address == NO_SERVICE else ControlAddress.parse(address)


def _day_night(engine: Any, gateway: Gateway, batches: BatchRunner | None) -> DayNight | None:
    settings = DayNightSettings.from_environment(os.environ)
    if settings is None:
        return None
    stats = stat_logger_of(engine)
    return DayNight(
        engine,
        settings,
        job_command=job_commands(settings),
        first_tokens=gateway.first_tokens,
        begun_tpot=None if stats is None else stats.latencies.begun_tpot,
        batches=batches,
    )
