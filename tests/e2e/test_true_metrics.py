"""/metrics of a live server: vLLM's families against what clients counted, ours against the engine.

The server is the one that all tests share, so totals are told by how they grow.
"""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving.metrics.families.catalog import FAMILIES
from serving.metrics.families.partition import HANDOVER_AGE, TRAINING_LOSS
from tests.e2e.server_answers import control
from tests.e2e.server_process import ServerProcess
from tests.seen_server import CHIPS, MODEL

pytestmark = pytest.mark.engine

REQUESTS, SHARED_TOKENS, ANSWER_TOKENS = 12, 64, 10
OF_SOME = {HANDOVER_AGE.name, TRAINING_LOSS.name, "ultraserve_admission_limit"}
"""Families that are absent where nothing is lent and no bound is set."""


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


def test_vllm_s_families_grow_by_what_clients_have_seen(seen_server: ServerProcess) -> None:
    before = page(seen_server)
    with ThreadPoolExecutor(4) as pool:
        usages = list(pool.map(lambda number: ask(seen_server, number), range(REQUESTS)))
    after = page(seen_server)

    def grew(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    prompts = sum(usage["prompt_tokens"] for usage in usages)
    answers = sum(usage["completion_tokens"] for usage in usages)
    hits = grew("vllm:prefix_cache_hits_total")
    assert grew("vllm:prompt_tokens_total") == prompts
    assert grew("vllm:prefix_cache_queries_total") == prompts
    assert grew("vllm:generation_tokens_total") == answers
    assert 0 < hits < REQUESTS * SHARED_TOKENS
    # What was computed is what is not a hit, by vLLM's count and by the engine's own.
    assert grew("vllm:request_prefill_kv_computed_tokens_sum") == prompts - hits
    assert grew("ultraserve_tokens_total", kind="prompt") == prompts - hits
    assert grew("ultraserve_tokens_total", kind="output") == answers
    assert grew("vllm:iteration_tokens_total_sum") == prompts - hits + answers
    assert grew("vllm:iteration_tokens_total_count") == grew("ultraserve_steps_total")
    assert grew("vllm:request_success_total", finished_reason="length") == REQUESTS
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert grew(f"vllm:{name}_seconds_count") == REQUESTS, name
    assert grew("vllm:inter_token_latency_seconds_count") == answers - REQUESTS
    inference = grew("vllm:request_inference_time_seconds_sum")
    parts = grew("vllm:request_prefill_time_seconds_sum")
    decode = grew("vllm:request_decode_time_seconds_sum")
    assert parts + decode == pytest.approx(inference)
    assert grew("vllm:inter_token_latency_seconds_sum") == pytest.approx(decode)
    queued = grew("vllm:request_queue_time_seconds_sum")
    whole = grew("vllm:e2e_request_latency_seconds_sum")
    assert inference + queued <= whole * 1.01
    # Requests were under way at most as long as emulated time passed, four at a time.
    assert inference <= 4 * grew("ultraserve_emulated_seconds_total")
    assert grew("vllm:estimated_flops_per_gpu_total") == pytest.approx(
        grew("ultraserve_chip_flops_total") / CHIPS
    )
    assert total(after, "vllm:num_requests_running") == 0
    assert total(after, "vllm:num_preemptions_total") == 0


def test_every_family_of_ours_is_on_the_page_as_it_is_defined(seen_server: ServerProcess) -> None:
    found = page(seen_server)
    missing = [family.name for family in FAMILIES if family.name not in {*found, *OF_SOME}]
    assert missing == []
    own = ("ultraserve_", "neuron", "execution_", "hardware_", "system_", "instance_")
    ours = {name for name in found if name.startswith(own) and not name.endswith("_created")}
    assert ours <= {family.name for family in FAMILIES}
    for family in FAMILIES:
        if family.name in found:
            assert found[family.name].type == family.kind
            assert found[family.name].documentation == family.help


def test_what_the_page_says_of_chips_is_the_control_service_s(seen_server: ServerProcess) -> None:
    ask(seen_server, 0)
    with control(seen_server) as client:
        report = client.hardware()
        load = client.expert_load()
    found = page(seen_server)

    assert len(report.meters) == CHIPS
    chips_joules = total(found, "ultraserve_chip_joules_total")
    assert chips_joules == pytest.approx(total(found, "ultraserve_chip_energy_joules_total"))
    assert chips_joules >= sum(meters.joules for meters in report.meters)
    assert total(found, "ultraserve_chip_flops_total") >= sum(m.flops for m in report.meters)
    held = sum(chip.hbm_used_bytes for chip in report.state.chips)
    assert total(found, "ultraserve_chip_hbm_bytes") == held
    assert total(found, "ultraserve_emulated_seconds_total") >= report.emulated_s
    assert sum(load.tokens) > 0


def test_energy_goes_on_while_nobody_asks_for_anything(seen_server: ServerProcess) -> None:
    before = after = page(seen_server)
    clock = "ultraserve_emulated_seconds_total"
    while total(after, clock) == total(before, clock):  # who reads at once is shown the same look
        after = page(seen_server)
    seconds = total(after, clock) - total(before, clock)
    joules = total(after, "ultraserve_chip_energy_joules_total") - total(
        before, "ultraserve_chip_energy_joules_total"
    )
    assert seconds > 0
    with control(seen_server) as client:
        idle_watts = client.hardware().ceilings.idle_watts
    assert joules == pytest.approx(CHIPS * idle_watts * seconds, rel=1e-3)
