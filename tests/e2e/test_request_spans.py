"""The spans of a server's requests, as a collector gets them over gRPC."""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from emulator.data import SMALL_MOE_DIR
from serving.engine.deployment import resolve_deployment
from serving.settings import Settings
from serving.telemetry.span_attributes import EMULATED_LATENCIES
from tests.e2e.server_answers import growth, metrics
from tests.e2e.server_process import ServerProcess
from tests.e2e.span_collector import Received, SpanCollector
from tests.live_server import CHIPS, DILATION, UNMOVED_TRIES

pytestmark = pytest.mark.engine

PROMPT = [9, 34, 27, 500, 3, 151]


@pytest.fixture
def traced(
    complete: Callable[..., Any], live_spans: SpanCollector
) -> Callable[..., tuple[Any, dict[str, Received]]]:
    """Ask for a completion, and wait for its spans by their names."""

    def ask(prompt: Any, **given: Any) -> tuple[Any, dict[str, Received]]:
        trace_id, parent = secrets.token_hex(16), secrets.token_hex(8)
        header = {"traceparent": f"00-{trace_id}-{parent}-01"}
        answer = complete(prompt, extra_headers=header, **given)
        found = {span.name: span for span in live_spans.of_trace(trace_id, 4)}
        assert found["llm_request"].parent == parent
        return answer, found

    return ask


def test_a_span_s_own_times_are_the_wall_s_and_what_it_carries_is_emulated(
    traced: Callable[..., Any],
) -> None:
    before_s = time.time()
    _, found = traced(PROMPT, max_tokens=20)
    after_s = time.time()

    request = found["llm_request"]
    assert before_s < request.begin_s < request.end_s < after_s
    ends = [(found[name].begin_s, found[name].end_s) for name in ("queue", "prefill", "decode")]
    edges = [request.begin_s, *(end_s for _, end_s in ends)]
    assert [begin_s for begin_s, _ in ends] == pytest.approx(edges[:-1], abs=1e-6)
    assert sorted(edges) == edges
    assert edges[-1] <= request.end_s

    told = request.attributes
    points = [
        told[f"ultraserve.emulated.{name}_s"]
        for name in ("begin", "scheduled", "first_token", "end")
    ]
    latencies = [told[name] for name in EMULATED_LATENCIES]
    assert sorted(points) == points
    ttft_s, e2e_s, *stages_s = latencies
    assert stages_s == pytest.approx(
        [points[1] - points[0], points[2] - points[1], points[3] - points[2], points[3] - points[1]]
    )
    assert told["ultraserve.dilation"] == DILATION
    wall_s = told["ultraserve.wall.time_to_first_token_s"]  # of Unix times, as doubles: 0.24 us
    assert ttft_s == pytest.approx(wall_s / DILATION, abs=1e-6)
    assert e2e_s == pytest.approx(told["ultraserve.wall.e2e_s"] / DILATION, abs=1e-6)
    decode = found["decode"]  # the emulated clock is the wall's, ten times slower
    assert (decode.end_s - decode.begin_s) / DILATION == pytest.approx(stages_s[2], abs=0.05)


def test_a_span_says_where_it_was_computed(traced: Callable[..., Any]) -> None:
    answer, found = traced(PROMPT, max_tokens=3)

    told = found["llm_request"].attributes
    assert told["ultraserve.system"] == "trn3-nl72x2"
    assert told["ultraserve.rank"] in range(CHIPS)
    assert told["ultraserve.ranks"] == told["ultraserve.chips"] == [told["ultraserve.rank"]]
    (weights,) = told["ultraserve.weights"]
    assert answer.system_fingerprint.endswith(f"-{weights}")
    assert found["llm_request"].resource["service.name"] == "ultraserve"


def test_the_joules_of_requests_are_what_the_chips_drew_beyond_being_idle(
    traced: Callable[..., Any], live_server: ServerProcess
) -> None:
    moved = "ultraserve_expert_moved_bytes_total"  # whose joules are no request's
    after = metrics(live_server)
    for _ in range(UNMOVED_TRIES):
        before = after
        with ThreadPoolExecutor(6) as pool:
            asked = [
                pool.submit(traced, [9 + number] * (30 + 40 * number), max_tokens=10 + number)
                for number in range(6)
            ]
            spans = [each.result(timeout=120)[1] for each in asked]
        after = metrics(live_server)
        if not growth(before, after, moved):
            break
    assert not growth(before, after, moved), "experts move all the time"

    requests = [found["llm_request"].attributes for found in spans]
    idle_s = growth(before, after, "ultraserve_emulated_seconds_total") - growth(
        before, after, "ultraserve_busy_seconds_total"
    )
    settings = Settings(chips=CHIPS)
    cost = resolve_deployment(settings, SMALL_MOE_DIR).machine(0.92).cost_model
    idle_watts = CHIPS * cost.idle_chip_watts
    for kind, watts in (("chip", idle_watts), ("facility", cost.facility_watts(idle_watts))):
        drawn = growth(before, after, f"ultraserve_{kind}_energy_joules_total")
        shares = sum(told[f"ultraserve.{kind}_joules"] for told in requests)
        assert 0 < shares < drawn
        assert shares == pytest.approx(drawn - idle_s * watts, rel=1e-6)
    for found in spans:
        whole = found["llm_request"].attributes["ultraserve.chip_joules"]
        parts = [found[name].attributes["ultraserve.chip_joules"] for name in ("prefill", "decode")]
        assert sum(parts) == pytest.approx(whole)
        assert "ultraserve.chip_joules" not in found["queue"].attributes


def test_a_request_that_a_stop_string_ends_has_its_joules_too(traced: Callable[..., Any]) -> None:
    whole, long = traced(PROMPT, max_tokens=24)
    text = whole.choices[0].text
    stopped, short = traced(PROMPT, max_tokens=24, stop=[text[len(text) // 2 :][:4]])

    assert stopped.choices[0].finish_reason == "stop"
    joules = [found["llm_request"].attributes["ultraserve.chip_joules"] for found in (short, long)]
    assert 0 < joules[0] < joules[1]


def test_each_sequence_of_a_request_has_its_spans(
    complete: Callable[..., Any], live_spans: SpanCollector
) -> None:
    trace_id = secrets.token_hex(16)
    header = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    answer = complete(PROMPT, n=2, temperature=1.0, max_tokens=3, extra_headers=header)

    spans = live_spans.of_trace(trace_id, 8)
    told = [span.attributes for span in spans if span.name == "llm_request"]
    assert [each["gen_ai.request.id"] for each in told] == [f"{answer.id}-0"] * 2
    assert sum(each["gen_ai.usage.completion_tokens"] for each in told) == 6
    assert len(spans) == 8


def test_a_client_sees_nothing_of_what_spans_are_told(complete: Callable[..., Any]) -> None:
    answer = complete(PROMPT, max_tokens=2, stop=["a string that never comes"])

    assert "ultraserve_trace" not in answer.to_json()
