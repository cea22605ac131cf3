"""/metrics of a live server: vLLM's families against what clients counted, ours against the engine.

The server is the one that all tests share, so totals are told by how they grow.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.families.guide_table import FAMILIES
from serving.telemetry.families.partition import (
    HANDOVER_AGE,
    TRAINING_COMPUTED,
    TRAINING_LAG,
    TRAINING_LOSS,
    TRAINING_SHARE,
)
from serving.telemetry.families.replicas import REPLICAS
from serving.wire import control_call
from tests.e2e.server_answers import control
from tests.e2e.server_process import ServerProcess
from tests.live_server import CHIPS, MODEL

pytestmark = pytest.mark.engine

REQUESTS, SHARED_TOKENS, ANSWER_TOKENS = 12, 64, 10
TIMES = (
    *("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"),
    *("request_queue_time", "request_inference_time"),
    *("request_prefill_time", "request_decode_time"),
)
"""vLLM's histograms of seconds with one value of each request."""

Usages = list[dict[str, int]]
OF_TRAINING = (TRAINING_LOSS, TRAINING_LAG, TRAINING_SHARE, TRAINING_COMPUTED)
OF_SOME = {
    *(each.name for each in (HANDOVER_AGE, *OF_TRAINING)),
    *(each.name for each in REPLICAS),
    "ultraserve_admission_limit",
}
"""Families that are absent where nothing is lent, no bound is set, and one engine serves alone."""


def page(server: ServerProcess) -> dict[str, Metric]:
    text = httpx.get(f"{server.url}/metrics", timeout=30).raise_for_status().text
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The sum of all samples of that name which have `labels`."""
    return sum(
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def sleep_states(families: dict[str, Metric]) -> set[str]:
    """Those that vLLM says the engine to be in."""
    samples = families["vllm:engine_sleep_state"].samples
    return {sample.labels["sleep_state"] for sample in samples if sample.value == 1}


def ask(server: ServerProcess, number: int) -> dict[str, int]:
    """One answer, whose prompt shares its beginning with the others; what it counted."""
    body = {
        "model": MODEL,
        "prompt": [5] * SHARED_TOKENS + [300 + number] * (10 + number),
        "max_tokens": ANSWER_TOKENS + number,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    usage: dict[str, int] = answer.raise_for_status().json()["usage"]
    return usage


class Grown:
    """Two pages, and how much each sample grew from one to the other."""

    def __init__(self, before: dict[str, Metric], after: dict[str, Metric]) -> None:
        self._before = before
        self.after = after

    def __call__(self, name: str, **labels: str) -> float:
        return total(self.after, name, **labels) - total(self._before, name, **labels)


def asked(server: ServerProcess, numbers: Iterable[int], at_a_time: int) -> tuple[Usages, Grown]:
    """What each answer counted, and how the page grew by them."""
    before = page(server)
    with ThreadPoolExecutor(at_a_time) as pool:
        usages = list(pool.map(lambda number: ask(server, number), numbers))
    return usages, Grown(before, page(server))


@pytest.fixture(scope="module")
def burst(live_server: ServerProcess) -> tuple[Usages, Grown]:
    """Requests of which some begin alike, four at a time."""
    return asked(live_server, range(REQUESTS), 4)


def test_vllm_s_counts_grow_by_what_clients_have_seen(burst: tuple[Usages, Grown]) -> None:
    usages, grew = burst
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    answers = sum(usage["completion_tokens"] for usage in usages)
    hits = grew("vllm:prefix_cache_hits_total")
    assert grew("vllm:prompt_tokens_total") == prompts
    assert grew("vllm:prefix_cache_queries_total") == prompts
    assert grew("vllm:generation_tokens_total") == answers
    assert 0 < hits < REQUESTS * SHARED_TOKENS
    # What was computed is what is not a hit, by vLLM's count and by the engine's own.
    assert grew("vllm:request_prefill_kv_computed_tokens_sum") == prompts - hits
    assert grew("vllm:prompt_tokens_by_source_total", source="local_compute") == prompts - hits
    assert grew("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == hits
    assert grew("vllm:prompt_tokens_by_source_total") == prompts
    assert grew("vllm:prompt_tokens_cached_total") == hits
    assert grew("vllm:prompt_tokens_cached_by_source_total", source="device") == hits
    assert grew("vllm:prompt_tokens_cached_by_source_total") == hits
    assert grew("ultraserve_tokens_total", kind="prompt") == prompts - hits
    assert grew("ultraserve_tokens_total", kind="output") == answers
    assert grew("vllm:iteration_tokens_total_sum") == prompts - hits + answers
    assert grew("vllm:iteration_tokens_total_count") == grew("ultraserve_steps_total")
    assert grew("vllm:request_success_total", finished_reason="length") == REQUESTS
    assert grew("vllm:request_success_total") == REQUESTS
    assert grew("vllm:num_preemptions_total") == 0
    assert grew("vllm:estimated_flops_per_gpu_total") == pytest.approx(
        grew("ultraserve_chip_flops_total") / CHIPS
    )


def test_each_request_is_once_in_each_histogram(burst: tuple[Usages, Grown]) -> None:
    usages, grew = burst
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    answers = sum(usage["completion_tokens"] for usage in usages)
    sums = {
        "request_prompt_tokens": prompts,
        "request_generation_tokens": answers,
        "request_max_num_generation_tokens": answers,
        "request_params_max_tokens": answers,  # no answer ended before its bound
        "request_params_n": REQUESTS,
        "request_num_preemptions": 0,
    }
    for name, expected in sums.items():
        assert grew(f"vllm:{name}_sum") == expected, name
    for name in (*sums, *(f"{name}_seconds" for name in TIMES)):
        assert grew(f"vllm:{name}_count") == REQUESTS, name
    assert grew("vllm:inter_token_latency_seconds_count") == answers - REQUESTS


def test_the_parts_of_a_request_s_time_are_its_whole(burst: tuple[Usages, Grown]) -> None:
    _, grew = burst
    spent = {name: grew(f"vllm:{name}_seconds_sum") for name in TIMES}
    inference, decode = spent["request_inference_time"], spent["request_decode_time"]
    assert spent["request_prefill_time"] + decode == pytest.approx(inference)
    assert grew("vllm:inter_token_latency_seconds_sum") == pytest.approx(decode)
    assert inference + spent["request_queue_time"] <= spent["e2e_request_latency"] * 1.01
    # Requests were under way at most as long as emulated time passed, four at a time.
    assert inference <= 4 * grew("ultraserve_emulated_seconds_total")


def test_a_request_s_time_per_output_token_is_of_those_after_its_first(
    live_server: ServerProcess,
) -> None:
    (usage,), grew = asked(live_server, [0], 1)
    decode = grew("vllm:request_decode_time_seconds_sum")
    further = usage["completion_tokens"] - 1
    assert decode > 0
    assert grew("vllm:request_time_per_output_token_seconds_count") == 1
    mean = grew("vllm:request_time_per_output_token_seconds_sum")
    assert mean == pytest.approx(decode / further)


def test_a_server_at_rest_has_nothing_under_way_and_is_awake(burst: tuple[Usages, Grown]) -> None:
    _, grew = burst
    for name in ("running", "waiting", "waiting_by_reason"):
        assert {sample.value for sample in grew.after[f"vllm:num_requests_{name}"].samples} == {0}
    assert sleep_states(grew.after) == {"awake"}


def test_the_page_tells_that_the_engine_sleeps(live_server: ServerProcess) -> None:
    with control(live_server) as client:
        client.call(control_call.SLEEP, level=1)
        try:
            assert sleep_states(page(live_server)) == {"weights_offloaded"}
        finally:
            client.call(control_call.WAKE_UP)
    assert sleep_states(page(live_server)) == {"awake"}


def test_every_family_of_ours_is_on_the_page_as_it_is_defined(live_server: ServerProcess) -> None:
    found = page(live_server)
    missing = [family.name for family in FAMILIES if family.name not in {*found, *OF_SOME}]
    assert missing == []
    own = ("ultraserve_", "neuron", "execution_", "hardware_", "system_", "instance_")
    ours = {name for name in found if name.startswith(own) and not name.endswith("_created")}
    assert ours <= {family.name for family in FAMILIES}
    for family in FAMILIES:
        if family.name in found:
            assert found[family.name].type == family.kind
            assert found[family.name].documentation == family.help


def test_what_the_page_says_of_chips_is_the_control_service_s(live_server: ServerProcess) -> None:
    ask(live_server, 0)
    with control(live_server) as client:
        report = client.call(control_call.GET_HARDWARE)
        load = client.call(control_call.GET_EXPERT_LOAD)
    found = page(live_server)

    assert len(report.meters) == CHIPS
    looked_joules = sum(meters.joules for meters in report.meters)
    assert looked_joules == pytest.approx(report.telemetry.chip_joules)
    # The engine's own families may be a step ahead of the chips', which are of the look.
    chips_joules = total(found, "ultraserve_chip_joules_total")
    assert looked_joules <= chips_joules * (1 + 1e-9)
    assert chips_joules <= total(found, "ultraserve_chip_energy_joules_total") * (1 + 1e-9)
    assert total(found, "ultraserve_chip_flops_total") >= sum(m.flops for m in report.meters)
    held = sum(chip.hbm_used_bytes for chip in report.state.chips)
    assert total(found, "ultraserve_chip_hbm_bytes") == held
    emulated_s = total(found, "ultraserve_emulated_seconds_total")  # a sum of parts, rounded
    assert emulated_s >= report.emulated_s * (1 - 1e-9)
    assert sum(load.tokens) > 0


def test_energy_goes_on_without_requests(live_server: ServerProcess) -> None:
    before = after = page(live_server)
    clock = "ultraserve_emulated_seconds_total"
    while total(after, clock) == total(before, clock):  # who reads at once is shown the same look
        after = page(live_server)
    seconds = total(after, clock) - total(before, clock)
    joules = total(after, "ultraserve_chip_energy_joules_total") - total(
        before, "ultraserve_chip_energy_joules_total"
    )
    assert seconds > 0
    with control(live_server) as client:
        idle_watts = client.call(control_call.GET_HARDWARE).ceilings.idle_watts
    assert joules == pytest.approx(CHIPS * idle_watts * seconds, rel=1e-3)
