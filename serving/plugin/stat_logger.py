"""vLLM's Prometheus metrics in emulated seconds, and ours beside them.

Engine-side durations arrive in emulated time already (see lockstep_scheduler). Only what the front
end measures with the wall, TTFT and the whole request, is converted here, by the epochs of the
clock that a request lived through; the wall values are kept under names of their own.
"""

import copy
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from emulator.errors import ConfigError
from emulator.sim.epochs import EpochMap
from serving.plugin.op_counters import OpCounters
from serving.plugin.platform import deployment_of
from serving.telemetry.clock_epochs import emulated_duration_s
from serving.telemetry.first_token_times import FirstTokenTimes
from serving.telemetry.latency_window import Latencies, LatencyReport, LatencyWindow
from serving.telemetry.recorder import Recorder
from serving.wire.engine_status import EngineStatus, StatusReader, status_path
from serving.wire.hardware import HardwareReport
from serving.wire.snapshot import Snapshot


class EmulatedStatLogger(PrometheusStatLogger):
    """Takes the place of vLLM's own Prometheus logger in the API process.

    Raises:
        ConfigError: a virtual clock behind a socket, where clients' waiting would not be emulated.
    """

    _perf_metrics_cls = OpCounters

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None) -> None:
        deployment = deployment_of(vllm_config)
        if deployment.settings.clock == "virtual":
            raise ConfigError(
                field="clock",
                value="virtual",
                expected="real, auto or dilated:K behind a socket; virtual is for LLM()",
            )
        super().__init__(vllm_config, engine_indexes)
        self._recorder = Recorder(deployment.info())
        self._status = StatusReader(status_path(vllm_config.instance_id))
        self._is_asked = False
        self.first_tokens = FirstTokenTimes()
        self.latencies = LatencyWindow()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Record one iteration, converted to emulated time."""
        status = self.status
        if not self._is_asked and (snapshot := self._status.snapshot) is not None:
            self._recorder.record(snapshot)  # of stock vLLM: no gateway asks the engine
        epochs = None if status is None else status.epoch_map
        if iteration_stats is not None and status is not None and epochs is not None:
            self._recorder.observe_wall(
                list(iteration_stats.time_to_first_tokens_iter),
                [request.e2e_latency for request in iteration_stats.finished_requests],
            )
            iteration_stats = in_emulated_time(iteration_stats, epochs)
            self._take_times(status.emulated_s, iteration_stats)
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)

    def _take_times(self, emulated_s: float, stats: IterationStats) -> None:
        """Keep the times of one step, all emulated."""
        self.first_tokens.add(emulated_s, stats.time_to_first_tokens_iter)
        finished = stats.finished_requests
        self.latencies.add(
            emulated_s,
            ttft_s=stats.time_to_first_tokens_iter,
            # Of a single token there is no time per further one.
            tpot_s=[
                request.mean_time_per_output_token
                for request in finished
                if request.num_generation_tokens > 1
            ],
            e2e_s=[request.e2e_latency for request in finished],
        )

    def take_snapshot(self, report: HardwareReport, snapshot: Snapshot) -> None:
        """Show what the engine answered to a control call; both are of one moment."""
        self._is_asked = True
        self._recorder.record(snapshot)
        assert isinstance(self.perf_metrics_prom, OpCounters)
        self.perf_metrics_prom.take(report)

    @property
    def status(self) -> EngineStatus | None:
        """At the end of the engine's newest step; None before it has started."""
        return self._status.read()

    @property
    def epochs(self) -> EpochMap | None:
        """Emulated time by Unix time; None before the engine has started."""
        status = self.status
        return None if status is None else status.epoch_map


def first_token_times(engine: Any) -> FirstTokenTimes | None:
    """Those that the logger of vLLM's AsyncLLM `engine` keeps; None where nothing is logged."""
    logger = stat_logger_of(engine)
    return None if logger is None else logger.first_tokens


def latencies(engine: Any) -> Latencies | None:
    """How long requests of vLLM's AsyncLLM `engine` took of late; None where nothing is logged."""
    logger = stat_logger_of(engine)
    if logger is None:
        return None

    def report(now_s: float) -> LatencyReport | None:
        last = logger.status
        return None if last is None else logger.latencies.report(max(now_s, last.emulated_s))

    return report


def stat_logger_of(engine: Any) -> EmulatedStatLogger | None:
    """The logger of vLLM's AsyncLLM `engine`; None where it logs nothing."""
    manager = getattr(engine, "logger_manager", None)
    loggers = [] if manager is None else manager.stat_loggers
    return next((each for each in loggers if isinstance(each, EmulatedStatLogger)), None)


def in_emulated_time(stats: IterationStats, epochs: EpochMap) -> IterationStats:
    """Return a copy of `stats` whose wall durations are emulated, by `epochs` of Unix time.

    They end with the iteration, as vLLM has stamped it.
    """
    scaled = copy.copy(stats)
    end_s = stats.iteration_timestamp

    def emulated_s(wall_s: float) -> float:
        return emulated_duration_s(epochs, end_s - wall_s, end_s)

    scaled.time_to_first_tokens_iter = [emulated_s(s) for s in stats.time_to_first_tokens_iter]
    scaled.finished_requests = [copy.copy(request) for request in stats.finished_requests]
    for request in scaled.finished_requests:
        request.e2e_latency = emulated_s(request.e2e_latency)
    return scaled
