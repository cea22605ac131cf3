"""vLLM's own sleep and pause, as the control service offers them: whole engine, vLLM's words."""

from collections.abc import Sequence
from typing import Final, Protocol

from emulator.errors import ConfigError
from serving.server.engine_call import Engine
from serving.wire.control_call import EngineSleepState

LEVELS: Final = (1, 2)
"""vLLM's; its level 0 leaves HBM as it is, and is a pause here."""

_LEVEL: Final = 1
"""vLLM's own choice."""

MODES: Final = ("abort", "wait", "keep")
TAGS: Final = ("weights", "kv_cache")


class ServedEngine(Engine, Protocol):
    """All that the control service needs of vLLM's AsyncLLM."""

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Let weights and KV leave HBM."""

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Let them come back."""

    async def is_sleeping(self) -> bool:
        """Whether something is not back."""

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """Hold requests back."""

    async def resume_generation(self) -> None:
        """Let them go on."""

    async def is_paused(self) -> bool:
        """Whether they are held back."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget prefixes; False when requests hold some of them."""


def checked_level(level: int) -> int:
    """The level that is meant, where 0 says none; raises ConfigError for another than `LEVELS`."""
    if level == 0:
        return _LEVEL
    if level not in LEVELS:
        raise ConfigError(field="level", value=level, expected=" or ".join(map(str, LEVELS)))
    return level


def checked_tags(tags: Sequence[str]) -> list[str] | None:
    """What to wake, None for everything; raises ConfigError for what does not sleep."""
    for tag in tags:
        if tag not in TAGS:
            raise ConfigError(field="tags", value=tag, expected=" or ".join(TAGS))
    return list(tags) or None


async def sleep_state_of(engine: ServedEngine) -> EngineSleepState:
    """Whether the engine sleeps or pauses now."""
    return EngineSleepState(sleeping=await engine.is_sleeping(), paused=await engine.is_paused())
