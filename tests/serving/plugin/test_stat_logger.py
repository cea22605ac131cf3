"""What leaves on /metrics: vLLM's durations in emulated seconds, the wall's under other names."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import REGISTRY
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from emulator.errors import ConfigError
from emulator.sim.epochs import EpochMap
from serving.plugin.stat_logger import (
    StepHistogram,
    in_emulated_time,
    latencies,
)
from serving.telemetry.latency_window import RequestTimes
from serving.wire.engine_status import EngineStatus
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.seen_engine import Seen
from tests.serving.plugin.stat_loggers import logger, started
from tests.serving.telemetry.telemetry_snapshots import a_telemetry
from tests.serving.wire.engine_statuses import epoch, status

EPOCHS = EpochMap.at(now_ns=0, wall_ns=0, dilation=4.0)


def finished(e2e_s: float) -> FinishedRequestStats:
    return FinishedRequestStats(
        finish_reason=FinishReason.LENGTH,
        request_id="a",
        e2e_latency=e2e_s,
        num_prompt_tokens=10,
        num_generation_tokens=4,
        max_tokens_param=4,
        queued_time=1.0,
        prefill_time=2.0,
        inference_time=5.0,
        decode_time=3.0,
        mean_time_per_output_token=1.0,
    )


def iteration() -> IterationStats:
    stats = IterationStats()
    stats.time_to_first_tokens_iter = [8.0, 4.0]
    stats.inter_token_latencies_iter = [0.5]
    stats.finished_requests = [finished(40.0)]
    stats.num_generation_tokens = 3
    return stats


def test_only_what_the_front_end_measured_with_the_wall_is_divided_by_the_dilation() -> None:
    scaled = in_emulated_time(iteration(), EPOCHS)

    assert scaled.time_to_first_tokens_iter == [2.0, 1.0]
    assert [request.e2e_latency for request in scaled.finished_requests] == [10.0]
    # Taken from the engine's own stamps, which are emulated already:
    assert scaled.inter_token_latencies_iter == [0.5]
    (request,) = scaled.finished_requests
    assert (request.queued_time, request.prefill_time) == (1.0, 2.0)
    assert (request.inference_time, request.decode_time) == (5.0, 3.0)
    assert request.mean_time_per_output_token == 1.0
    assert scaled.num_generation_tokens == 3


def test_the_stats_that_other_loggers_share_are_left_as_they_were() -> None:
    stats = iteration()
    before = copy.deepcopy(vars(stats))
    in_emulated_time(stats, EPOCHS)

    assert vars(stats) == before


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """vLLM registers its families with the process; another logger must be able to."""
    with own_metrics():
        yield


def value(name: str, **labels: str) -> float:
    """The one sample of `name` that has `labels`."""
    (found,) = (
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found


@pytest.mark.usefixtures("clean_registry")
def test_vllm_s_durations_are_emulated_and_the_wall_s_have_their_own_names() -> None:
    target, engine = started()
    engine.write(status(dilation=4.0))
    target.record(SchedulerStats(num_running_reqs=3), iteration())

    assert value("vllm:time_to_first_token_seconds_sum") == pytest.approx(3.0)
    assert value("vllm:e2e_request_latency_seconds_sum") == pytest.approx(10.0)
    assert value("vllm:request_queue_time_seconds_sum") == pytest.approx(1.0)
    assert value("vllm:request_decode_time_seconds_sum") == pytest.approx(3.0)
    assert value("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.5)
    assert value("ultraserve_wall_time_to_first_token_seconds_sum") == pytest.approx(12.0)
    assert value("ultraserve_wall_e2e_request_latency_seconds_sum") == pytest.approx(40.0)
    assert value("vllm:num_requests_running") == 3.0


@given(st.lists(st.floats(0.0, 20.0) | st.sampled_from((0.0, 0.5, 1.0, 20.0))))
def test_values_of_a_step_are_observed_as_if_one_by_one(amounts: list[float]) -> None:
    together, alone = (
        StepHistogram("between", "of tokens", buckets=(0.0, 0.5, 1.0, 2.5), registry=None)
        for _ in range(2)
    )
    together.observe_all(amounts)
    for amount in amounts:
        alone.observe(amount)
    (made,), (expected,) = together.collect(), alone.collect()
    for sample, other in zip(made.samples, expected.samples, strict=True):
        if not sample.name.endswith("_created"):
            assert sample.labels == other.labels
            assert sample.value == pytest.approx(other.value)


@pytest.mark.usefixtures("clean_registry")
def test_times_between_tokens_are_counted_once_and_stay_for_other_loggers() -> None:
    target, engine = started()
    engine.write(status(dilation=4.0))
    stats = iteration()
    stats.inter_token_latencies_iter = [0.5, 0.5, 0.25]
    target.record(None, stats)
    assert value("vllm:inter_token_latency_seconds_sum") == pytest.approx(1.25)
    assert value("vllm:inter_token_latency_seconds_count") == 3.0
    assert stats.inter_token_latencies_iter == [0.5, 0.5, 0.25]


@pytest.mark.long
@pytest.mark.usefixtures("clean_registry")
def test_a_snapshot_reaches_our_families() -> None:
    target, seen = logger(), Seen()
    seen.step(0, 1)
    answer = seen.look()
    target.take_snapshot(replace(answer, telemetry=a_telemetry(chip_joules=77.0)))

    assert value("ultraserve_chip_energy_joules_total") == 77.0
    assert value("ultraserve_clock_dilation") == 4.0
    labels = {"chips": "2", "time_model": "qwen3-30b-a3b", "weights": "small-moe", "clock": "auto"}
    assert value("ultraserve_info", ultraserver="0", **labels) == 1.0


@pytest.mark.long
@pytest.mark.usefixtures("clean_registry")
def test_where_no_gateway_asks_the_engine_a_step_shows_its_newest_totals() -> None:
    target, engine = started()
    engine.write(status(dilation=4.0), a_telemetry(chip_joules=5.0))
    target.record(None, None)
    engine.write(status(dilation=4.0))
    target.record(None, None)
    assert value("ultraserve_chip_energy_joules_total") == 5.0

    answer = Seen().look()
    target.take_snapshot(replace(answer, telemetry=a_telemetry(chip_joules=7.0)))
    engine.write(status(dilation=4.0), a_telemetry(chip_joules=9.0))
    target.record(None, None)
    assert value("ultraserve_chip_energy_joules_total") == 7.0  # until it is asked again


@pytest.mark.usefixtures("clean_registry")
def test_an_iteration_without_stats_is_scaled_by_the_clock_all_the_same() -> None:
    target, engine = started()
    engine.write(status(dilation=8.0))
    target.record(None, iteration())

    assert value("vllm:time_to_first_token_seconds_sum") == pytest.approx(1.5)


@pytest.mark.usefixtures("clean_registry")
def test_a_request_that_lived_through_two_epochs_is_converted_by_both() -> None:
    (target, engine), stats = started(), iteration()
    end_s = stats.iteration_timestamp
    stats.time_to_first_tokens_iter = [8.0]
    epochs = (
        epoch(10.0, unix_s=end_s - 1_000.0),
        epoch(2.0, index=1, emulated_s=99.6, unix_s=end_s - 4.0),
    )
    engine.write(EngineStatus(emulated_s=100.0, ranks_up=2, epochs=epochs))
    target.record(None, stats)

    # 4 wall s at 10 are 0.4, 4 at 2 are 2; of 40 s 36 at 10 are 3.6.
    assert value("vllm:time_to_first_token_seconds_sum") == pytest.approx(2.4)
    assert value("vllm:e2e_request_latency_seconds_sum") == pytest.approx(5.6)
    assert value("ultraserve_wall_time_to_first_token_seconds_sum") == pytest.approx(8.0)


@pytest.mark.usefixtures("clean_registry")
def test_a_virtual_clock_is_refused_behind_a_socket() -> None:
    with pytest.raises(ConfigError, match=r"^clock=virtual: expected real, auto or dilated:K"):
        logger("virtual")


@pytest.mark.usefixtures("clean_registry")
def test_the_last_minute_s_times_are_emulated_and_one_token_has_no_time_per_further_one() -> None:
    target, engine = started()
    manager = SimpleNamespace(stat_loggers=[target])
    report = latencies(SimpleNamespace(logger_manager=manager))
    assert report is not None
    assert report(0.0) is None  # nothing has been recorded

    stats = iteration()
    single = finished(20.0)
    single.num_generation_tokens, single.mean_time_per_output_token = 1, 0.0
    stats.finished_requests.append(single)
    engine.write(status(dilation=4.0, emulated_s=100.0))
    target.record(None, stats)

    minute = report(0.0)
    assert minute is not None
    assert (minute.window_s, minute.requests) == (60.0, 2)
    assert (minute.ttft_p50_s, minute.ttft_p99_s) == (1.0, 2.0)
    assert (minute.tpot_p50_s, minute.tpot_p99_s) == (1.0, 1.0)
    assert (minute.e2e_p50_s, minute.e2e_p99_s) == (5.0, 10.0)
    rested = report(161.0)  # the engine has rested for a minute since
    assert rested is not None
    assert rested.requests == 0


@pytest.mark.usefixtures("clean_registry")
def test_interactive_requests_are_judged_by_tpot_from_their_first_token_on() -> None:
    target, engine = started()
    heard: list[RequestTimes] = []
    target.on_times = heard.append
    engine.write(status(dilation=4.0, emulated_s=100.0))

    def finish(*names: str) -> tuple[tuple[float, float], ...]:
        stats = iteration()
        stats.finished_requests = [finished(20.0) for _ in names]
        for request, name in zip(stats.finished_requests, names, strict=True):
            request.request_id = name
        target.record(None, stats)
        return heard[-1].begun_tpot

    target.batch_ended("b")
    assert finish("a", "b") == ((97.0, 1.0),)  # first tokens came 3 s before the last
    assert len(heard[-1].tpot_s) == 2
    assert finish("a", "b") == ((97.0, 1.0),) * 2  # a client's name may come again
    target.batch_ended("c")
    target.record(None, None)
    assert finish("c") == ((97.0, 1.0),)


def test_an_engine_that_logs_nothing_has_no_latencies() -> None:
    assert latencies(SimpleNamespace()) is None
