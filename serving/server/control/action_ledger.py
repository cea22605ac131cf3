"""Outcomes of calls that change something, by idempotency key.

| a key's call | the same call with the key again |
|---|---|
| under way | waits with the first |
| done | gets the same answer; nothing is done twice |
| refused, with a reason | is tried anew: nothing has changed |
| failed in any other way | stays unknown: it may have been done |

A call continues without its client. One that outlasts the answer's limit is *unknown* until asked
again. The memory is bounded, and ends with the server.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from emulator.errors import ConfigError, UltraServeError
from serving.server.control.call_failure import failure_of_call, outcome_unknown, too_many
from serving.server.engine_call import EngineFailed, EngineGone

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

KEY_HEADER: Final = "idempotency-key"
"""gRPC metadata; HTTP's name (draft-ietf-httpapi-idempotency-key-header)."""

KEY_LENGTH_MAX: Final = 128
OUTCOMES_KEPT: Final = 1_024
"""The oldest is forgotten first."""

ANSWER_WALL_S_MAX: Final = 1.5
"""Wall seconds to an answer; 2 s less the network."""


@dataclass(slots=True, eq=False)
class _Action:
    """`late`: its client was answered before the outcome."""

    asked: tuple[str, bytes]
    outcome: "asyncio.Task[Any]"
    late: bool = False


class ActionLedger:
    """One server's outcomes; in its event loop."""

    def __init__(self, *, answer_wall_s_max: float = ANSWER_WALL_S_MAX) -> None:
        self._answer_wall_s_max = answer_wall_s_max
        self._actions: OrderedDict[str, _Action] = OrderedDict()

    def __len__(self) -> int:
        return len(self._actions)

    async def outcome(
        self, key: str | None, asked: tuple[str, bytes], act: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The result of `act`, called unless `key` names an earlier call.

        Raises what `act` does; CallRefused without an outcome in time, or with a full ledger;
        ConfigError for a malformed key, or one of a different call.
        """
        key = secrets.token_hex(8) if key is None else checked_key(key)
        action = self._actions.get(key)
        if action is not None and action.asked != asked:
            raise ConfigError(
                "idempotency_key", key, "a key of its own: another call has been made with this one"
            )
        if action is None:
            self._make_room()
            action = _Action(asked, asyncio.ensure_future(act()))
            self._actions[key] = action
            action.outcome.add_done_callback(lambda _: self._over(key, action))
        await asyncio.wait({action.outcome}, timeout=self._answer_wall_s_max)
        if not action.outcome.done():
            action.late = True
            raise outcome_unknown(key, "the engine has not answered yet")
        if action.outcome.cancelled():
            raise outcome_unknown(key, "the server ends")
        error = action.outcome.exception()
        if error is not None and not _is_definite(error):
            raise outcome_unknown(key, failure_of_call(error).message) from error
        return action.outcome.result()

    def _over(self, key: str, action: _Action) -> None:
        """Forget a refused call, which has changed nothing."""
        cancelled = action.outcome.cancelled()
        error = None if cancelled else action.outcome.exception()
        if error is not None and _is_definite(error):
            self._actions.pop(key, None)
        elif error is not None and not isinstance(error, EngineGone | EngineFailed | TimeoutError):
            logger.error("a call of the control service failed", exc_info=error)
        if action.late:
            _tell_late(action.asked[0].rpartition("/")[2], key, action.outcome)

    def _make_room(self) -> None:
        if len(self._actions) < OUTCOMES_KEPT:
            return
        over = next((k for k, each in self._actions.items() if each.outcome.done()), None)
        if over is None:
            raise too_many("calls that change something", OUTCOMES_KEPT)
        del self._actions[over]

    async def stop(self) -> None:
        """Cancel the calls that are under way; idempotent."""
        under_way = [each.outcome for each in self._actions.values() if not each.outcome.done()]
        for outcome in under_way:
            outcome.cancel()
        if under_way:
            await asyncio.wait(under_way)


def _is_definite(error: BaseException) -> bool:
    """Whether nothing has changed: refusals precede every change."""
    if isinstance(error, EngineGone):
        return error.definite
    return isinstance(error, UltraServeError | NotImplementedError)


def _tell_late(name: str, key: str, outcome: "asyncio.Task[Any]") -> None:
    error = None if outcome.cancelled() else outcome.exception()
    words = "CANCELLED" if outcome.cancelled() else "OK" if error is None else str(error)
    logger.info("control call %s with idempotency key %s ended late: %s", name, key, words)


def checked_key(key: str) -> str:
    """The key; raises ConfigError for a malformed one."""
    if not 0 < len(key) <= KEY_LENGTH_MAX or not (key.isascii() and key.isprintable()):
        raise ConfigError(
            "idempotency_key", key[:40], f"1 to {KEY_LENGTH_MAX} printable ASCII characters"
        )
    return key
