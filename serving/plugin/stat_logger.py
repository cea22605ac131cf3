"""vLLM's Prometheus metrics in emulated seconds, and ours beside them.

Engine durations arrive emulated (see lockstep_scheduler). TTFT and end-to-end time, measured by the
wall, are converted by the clock's epochs; wall values are kept under other names.
"""

import copy
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import Histogram
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.perf import PerfMetricsProm, PerfStats
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from emulator.errors import ConfigError
from emulator.sim.epochs import EpochMap
from serving.plugin.platform import deployment_of
from serving.process.api_processes import ApiProcesses
from serving.telemetry.latency_window import Latencies, LatencyReport, LatencyWindow, RequestTimes
from serving.telemetry.recorder import Recorder
from serving.wire.engine_status import EngineStatus, StatusReader, status_path
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.telemetry import Telemetry


class OpCounters(PerfMetricsProm):
    """vLLM's families of estimated work per GPU, filled with the emulator's counts per chip.

    Work is the timed model's on the mean chip without spares, at snapshots. All HBM traffic counts
    as read: vLLM's formula for bandwidth adds both directions.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._shown: dict[str, float] = {"flops": 0.0, "bytes": 0.0}

    def observe(self, perf_stats: PerfStats, engine_idx: int = 0) -> None:
        """Ignore vLLM's own estimate."""

    def take(self, snapshot: MachineSnapshot) -> None:
        """Count up to a snapshot."""
        chips = snapshot.state.partition.chips
        totals = {
            "flops": sum(meters.flops for meters in snapshot.meters) / chips,
            "bytes": sum(meters.hbm_bytes for meters in snapshot.meters) / chips,
        }
        for name, counters in (("flops", self.counter_flops), ("bytes", self.counter_read_bytes)):
            for counter in counters.values():
                counter.inc(max(0.0, totals[name] - self._shown[name]))
            self._shown[name] = max(totals[name], self._shown[name])


class StepHistogram(Histogram):
    """A histogram that takes the values of a step together, most of which are equal."""

    def observe_all(self, amounts: Iterable[float]) -> None:
        """As `observe` of each amount."""
        for amount, times in Counter(amounts).items():
            self._sum.inc(amount * times)
            self._buckets[bisect_left(self._upper_bounds, amount)].inc(times)


class EmulatedStatLogger(PrometheusStatLogger):
    """Replaces vLLM's Prometheus logger in the API process.

    Raises:
        ConfigError: a virtual clock behind a socket, where clients' waiting would not be emulated.
    """

    _perf_metrics_cls = OpCounters
    _histogram_cls = StepHistogram

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None) -> None:
        deployment = deployment_of(vllm_config)
        if deployment.settings.clock == "virtual":
            raise ConfigError(
                "clock", "virtual", "real, auto or dilated:K behind a socket; virtual is for LLM()"
            )
        super().__init__(vllm_config, engine_indexes)
        self._recorder = Recorder(deployment.info())
        processes = ApiProcesses.from_environment(os.environ)
        path = status_path(vllm_config.instance_id)
        self._status = StatusReader(path, keeps=processes is not None)
        # The first of several API processes asks the engine for all.
        self._is_asked = processes is not None and not processes.is_first
        self._recorded: Telemetry | None = None
        self.latencies = LatencyWindow()
        self.on_times: Callable[[RequestTimes], None] = self.latencies.add
        self._batch_ended: set[str] = set()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Record one iteration, converted to emulated time."""
        status = self.status
        batch, self._batch_ended = self._batch_ended, set()
        totals = self._status.totals
        if not self._is_asked and totals is not None and totals is not self._recorded:
            self._recorded = totals
            self._recorder.record(totals)  # of stock vLLM: no gateway asks the engine
        epochs = None if status is None else status.epoch_map
        if iteration_stats is not None and status is not None and epochs is not None:
            self._recorder.observe_wall(
                list(iteration_stats.time_to_first_tokens_iter),
                [request.e2e_latency for request in iteration_stats.finished_requests],
            )
            iteration_stats = in_emulated_time(iteration_stats, epochs)
            self._take_times(status.emulated_s, iteration_stats, batch)
        if iteration_stats is not None:
            between_s = iteration_stats.inter_token_latencies_iter
            self.histogram_inter_token_latency[engine_idx].observe_all(between_s)
            iteration_stats = copy.copy(iteration_stats)  # vLLM would observe each again
            iteration_stats.inter_token_latencies_iter = []
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)

    def batch_ended(self, request_id: str) -> None:
        """Note a batch request, by its client's id, which ends in the iteration recorded next."""
        self._batch_ended.add(request_id)

    def _take_times(self, emulated_s: float, stats: IterationStats, batch: set[str]) -> None:
        finished = stats.finished_requests
        if not (stats.time_to_first_tokens_iter or finished):
            return
        # Of a single token there is no time per further one.
        several = [request for request in finished if request.num_generation_tokens > 1]
        self.on_times(
            RequestTimes(
                emulated_s=emulated_s,
                ttft_s=stats.time_to_first_tokens_iter,
                tpot_s=[request.mean_time_per_output_token for request in several],
                e2e_s=[request.e2e_latency for request in finished],
                begun_tpot=tuple(
                    (emulated_s - request.decode_time, request.mean_time_per_output_token)
                    for request in several
                    if request.request_id not in batch
                ),
            )
        )

    def take_snapshot(self, snapshot: MachineSnapshot) -> None:
        """Show the engine's answer to a control call."""
        self._is_asked = True
        self._recorder.record(snapshot.telemetry)
        assert isinstance(self.perf_metrics_prom, OpCounters)
        self.perf_metrics_prom.take(snapshot)

    @property
    def status(self) -> EngineStatus | None:
        """State at the end of the newest step; None before the engine's start."""
        return self._status.read()

    @property
    def epochs(self) -> EpochMap | None:
        """Emulated time by Unix time; None before the engine's start."""
        status = self.status
        return None if status is None else status.epoch_map

    def latency_report(self, now_s: float) -> LatencyReport | None:
        """Latencies of requests before `now_s`, or the newest step; None before the first."""
        status = self.status
        return None if status is None else self.latencies.report(max(now_s, status.emulated_s))


def latencies(engine: Any) -> Latencies | None:
    """Recent latencies of AsyncLLM `engine`; None without logging."""
    logger = stat_logger_of(engine)
    return None if logger is None else logger.latency_report


def stat_logger_of(engine: Any) -> EmulatedStatLogger | None:
    """The logger of AsyncLLM `engine`; None without logging."""
    manager = getattr(engine, "logger_manager", None)
    loggers = [] if manager is None else manager.stat_loggers
    return next((each for each in loggers if isinstance(each, EmulatedStatLogger)), None)


def in_emulated_time(stats: IterationStats, epochs: EpochMap) -> IterationStats:
    """A copy of `stats` with wall durations, up to the iteration's stamp, converted by `epochs`."""
    scaled = copy.copy(stats)
    end_s = stats.iteration_timestamp

    def emulated_s(wall_s: float) -> float:
        return epochs.emulated_duration_s(end_s - wall_s, end_s)

    scaled.time_to_first_tokens_iter = [emulated_s(s) for s in stats.time_to_first_tokens_iter]
    scaled.finished_requests = [copy.copy(request) for request in stats.finished_requests]
    for request in scaled.finished_requests:
        request.e2e_latency = emulated_s(request.e2e_latency)
    return scaled
