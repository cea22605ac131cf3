"""An engine's status, by the route of the engine's process."""

from emulator.sim.epochs import Epoch
from serving.plugin.stat_logger import EmulatedStatLogger
from serving.wire.engine_status import EngineStatus, StatusWriter, status_path


def epoch(
    dilation: float, *, index: int = 0, emulated_s: float = 0.0, unix_s: float = 0.0
) -> Epoch:
    return Epoch(
        index=index,
        from_ns=round(emulated_s * 10**9),
        from_wall_ns=round(unix_s * 10**9),
        dilation=dilation,
    )


def status(*, dilation: float = 4.0, emulated_s: float = 5.0, ranks_up: int = 2) -> EngineStatus:
    """Of an engine in the first epoch of its clock."""
    return EngineStatus(emulated_s=emulated_s, ranks_up=ranks_up, epochs=(epoch(dilation),))


def writer_for(logger: EmulatedStatLogger) -> StatusWriter:
    """The engine's side of the file that `logger` reads."""
    return StatusWriter(status_path(logger.vllm_config.instance_id))
