"""Loggers of an engine's statistics, and the engine's side of what they know of the clock."""

from serving.plugin.stat_logger import EmulatedStatLogger
from serving.wire.engine_status import StatusWriter
from tests.serving.plugin.engine_config import engine_config
from tests.serving.wire.engine_statuses import writer_for


def logger(clock: str = "auto") -> EmulatedStatLogger:
    settings = {"chips": 2, "clock": clock, "model": "qwen3-30b-a3b"}
    config = engine_config(additional_config={"ultraserve": settings})
    config.cache_config.num_gpu_blocks = 100
    return EmulatedStatLogger(config, [0])


def started(clock: str = "auto") -> tuple[EmulatedStatLogger, StatusWriter]:
    """A logger, and the engine's side of what it knows of the clock."""
    target = logger(clock)
    return target, writer_for(target)
