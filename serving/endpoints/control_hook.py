"""Starts what runs beside vLLM's HTTP app and stops it with that: an ASGI middleware.

vLLM stays as it is: `vllm serve --middleware serving.endpoints.control_hook.ControlHook` puts the
class around its app, and a middleware sees the app's lifespan as well as its requests. By then the
app holds the engine's client, and the loop is the client's own.
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from serving.controller.day_night import DayNight
from serving.controller.day_night_settings import DayNightSettings
from serving.controller.job_command import job_commands
from serving.endpoints.control_address import ENVIRONMENT, ControlAddress
from serving.endpoints.control_service import ControlServer
from serving.endpoints.elastic_ep_refusal import is_refused, refuse
from serving.plugin.response_weights import begin_response, name_weights_in_responses
from serving.plugin.stat_logger import first_token_times

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Service(Protocol):
    """What runs while the app is up; `stop` is idempotent."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


class ControlHook:
    """Passes everything through but what is refused; runs the services while the app is up.

    Responses name the weights that made them: see `serving.plugin.response_weights`.

    The address is the environment's `ULTRASERVE_CONTROL_ADDRESS`, else the default. Chips train by
    night when `ULTRASERVE_DAY_NIGHT` says how. Of several API processes of one server the first has
    the services.

    Raises:
        ConfigError, PortInUse: in the app's start, which fails with it.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request, or the app's whole life."""
        if is_refused(scope):
            await refuse(send)
            return
        if scope["type"] != "lifespan":
            begin_response()
            await self._app(scope, receive, send)
            return
        services: list[Service] = []

        async def start_and_send(message: Message) -> None:
            # What fails here fails in the app's own start, which uvicorn then reports; before the
            # app has begun, uvicorn would take an error for an app that knows no lifespan.
            if message["type"] == "lifespan.startup.complete":
                name_weights_in_responses(scope["app"].state.engine_client)
                services.extend(_services(scope["app"].state))
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
            await _stop(services)


async def _stop(services: list[Service]) -> None:
    for service in reversed(services):
        await service.stop()


def _services(state: Any) -> list[Service]:
    """The services of this process; none in all API processes but the first."""
    if state.vllm_config.parallel_config._api_process_rank > 0:
        return []
    address = ControlAddress.parse(os.environ.get(ENVIRONMENT, str(ControlAddress())))
    engine = state.engine_client
    settings = DayNightSettings.from_environment(os.environ)
    if settings is None:
        return [ControlServer(engine, address)]
    day_night = DayNight(
        engine,
        settings,
        job_command=job_commands(settings),
        first_tokens=first_token_times(engine),
    )
    return [ControlServer(engine, address, day_night), day_night]
