"""vLLM's span of a request as it is extended: its real output processor, its real span."""

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    FinishReason,
)
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats

from emulator.errors import ConfigError
from emulator.sim.epochs import EpochMap
from serving.engine.request_trace import TRACE_KEY, RequestTrace
from serving.plugin.request_place import WEIGHTS_KEY
from serving.plugin.request_spans import Stamps, extend_spans, phases
from serving.telemetry.span_attributes import (
    EMULATED_LATENCIES,
    PHASE_ATTRIBUTES,
    REQUEST_ATTRIBUTES,
)
from tests.serving.plugin.core_request import core_request
from tests.serving.plugin.engine_config import engine_config

NAME = "cmpl-1-0"
GATEWAY_TRACE, GATEWAY_SPAN = "0123456789abcdef0123456789abcdef", "0123456789abcdef"
SAMPLED, NOT_SAMPLED = "01", "00"
DILATION = 10.0
TRACE = RequestTrace(
    dilation=DILATION,
    ranks=(3, 1),
    chips=(2, 3),
    prefill_chip_joules=6.0,
    prefill_facility_joules=9.0,
    decode_chip_joules=1.0,
    decode_facility_joules=1.5,
)


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """What ends in this process's one provider, which vLLM would set."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider
    return exporter


class Server:
    """vLLM's output processor of an API process, and the outputs of one request."""

    def __init__(self, exporter: InMemorySpanExporter, *, traces: bool = True) -> None:
        self._exporter = exporter
        self.processor = OutputProcessor(None, log_stats=True, tracing_enabled=traces)
        self.engine: Any = SimpleNamespace(
            output_processor=self.processor, log_stats=True, vllm_config=engine_config(4)
        )
        extend_spans(self.engine)
        extend_spans(self.engine)

    def begin(self, arrival_s: float) -> None:
        params = SamplingParams(max_tokens=2, temperature=0.0, detokenize=False)
        self.processor.add_request(
            core_request(NAME, [5, 6, 7], params, arrival_time=arrival_s),
            None,
        )

    def output(
        self, wall_s: float, emulated_s: float, token: int | None = None, **given: Any
    ) -> list[ReadableSpan]:
        """The spans that have ended once the request's output of `emulated_s` is seen."""
        iteration = IterationStats()
        iteration.iteration_timestamp = wall_s
        output = EngineCoreOutput(
            request_id=NAME, new_token_ids=[] if token is None else [token], **given
        )
        self.processor.process_outputs([output], emulated_s, iteration)
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return list(spans)


@pytest.fixture
def server(exporter: InMemorySpanExporter) -> Iterator[Server]:
    exporter.clear()
    yield Server(exporter)
    exporter.clear()


def event(kind: EngineCoreEventType, emulated_s: float) -> EngineCoreEvent:
    return EngineCoreEvent(kind, emulated_s)


def parent(flags: str = SAMPLED) -> dict[str, str]:
    return {"traceparent": f"00-{GATEWAY_TRACE}-{GATEWAY_SPAN}-{flags}"}


def params(told: RequestTrace = TRACE) -> dict[str, Any]:
    return {WEIGHTS_KEY: ["v1-a", "v2-b"], TRACE_KEY: list(told.message())}


def served(server: Server, *, flags: str = SAMPLED, told: RequestTrace = TRACE) -> Any:
    """A request that came 10 wall seconds ago, and waited 0.1 s, computed its first token in 0.2 s
    and its second in 0.3 s of the emulated clock, which stands at 50 s when it comes.
    """
    now_s = time.time()
    arrival_s = now_s - 10.0
    server.begin(arrival_s)
    assert not server.output(
        arrival_s + 4.0,
        50.3,
        11,
        events=[
            event(EngineCoreEventType.QUEUED, 50.0),
            event(EngineCoreEventType.SCHEDULED, 50.1),
        ],
    )
    spans = server.output(
        arrival_s + 8.0,
        50.6,
        12,
        finish_reason=FinishReason.LENGTH,
        trace_headers=parent(flags),
        kv_transfer_params=params(told),
    )
    return arrival_s, {span.name: span for span in spans}


def test_vllm_s_span_carries_what_is_emulated(server: Server) -> None:
    _, spans = served(server)
    request = spans["llm_request"]

    assert request.attributes is not None
    ours = {
        name: value for name, value in request.attributes.items() if name.startswith("ultraserve.")
    }
    assert ours == {
        "ultraserve.system": "trn3-nl72x2",
        "ultraserve.rank": 1,
        "ultraserve.ranks": (3, 1),
        "ultraserve.chips": (2, 3),
        "ultraserve.weights": ("v1-a", "v2-b"),
        "ultraserve.dilation": 10.0,
        "ultraserve.emulated.begin_s": 50.0,
        "ultraserve.emulated.scheduled_s": 50.1,
        "ultraserve.emulated.first_token_s": 50.3,
        "ultraserve.emulated.end_s": 50.6,
        "ultraserve.wall.time_to_first_token_s": pytest.approx(4.0, abs=1e-6),
        "ultraserve.wall.e2e_s": pytest.approx(8.0, abs=1e-6),
        "ultraserve.chip_joules": 7.0,
        "ultraserve.facility_joules": 10.5,
    }


def test_all_of_vllm_s_durations_are_in_emulated_seconds(server: Server) -> None:
    _, spans = served(server)

    found = {name: spans["llm_request"].attributes[name] for name in EMULATED_LATENCIES}
    assert found == {
        "gen_ai.latency.time_to_first_token": pytest.approx(0.4, abs=1e-6),
        "gen_ai.latency.e2e": pytest.approx(0.8, abs=1e-6),
        "gen_ai.latency.time_in_queue": pytest.approx(0.1),
        "gen_ai.latency.time_in_model_prefill": pytest.approx(0.2),
        "gen_ai.latency.time_in_model_decode": pytest.approx(0.3),
        "gen_ai.latency.time_in_model_inference": pytest.approx(0.5),
    }


def test_the_rest_of_vllm_s_span_is_as_vllm_makes_it(exporter: InMemorySpanExporter) -> None:
    def plain_part(spans: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in spans["llm_request"].attributes.items()
            if not name.startswith(("ultraserve.", "gen_ai.latency."))
        }

    _, extended = served(Server(exporter))
    unasked = Server(exporter)
    _, plain = served(unasked, told=replace(TRACE, dilation=0.0))  # virtual time: nothing is added

    assert plain_part(extended) == plain_part(plain)
    assert plain_part(plain)["gen_ai.usage.completion_tokens"] == 2
    assert plain.keys() == {"llm_request"}
    assert plain["llm_request"].attributes["gen_ai.latency.e2e"] == pytest.approx(8.0, abs=1e-6)


def test_a_gateway_s_span_is_the_parent(server: Server) -> None:
    _, spans = served(server)
    request = spans["llm_request"]

    assert f"{request.context.trace_id:032x}" == GATEWAY_TRACE
    assert f"{request.parent.span_id:016x}" == GATEWAY_SPAN
    assert request.kind is SpanKind.SERVER


def test_the_phases_lie_end_to_end_below_the_request_in_wall_time(server: Server) -> None:
    arrival_s, spans = served(server)
    request = spans.pop("llm_request")

    assert {span.parent.span_id for span in spans.values()} == {request.context.span_id}
    assert {span.context.trace_id for span in spans.values()} == {request.context.trace_id}
    wall = {
        name: (span.start_time / 1e9 - arrival_s, span.end_time / 1e9 - arrival_s)
        for name, span in spans.items()
    }
    near = {"abs": 1e-5}
    assert wall == {  # the first token's step took 0.2 emulated seconds, 2 of the wall's
        "queue": (pytest.approx(0.0, **near), pytest.approx(2.0, **near)),
        "prefill": (pytest.approx(2.0, **near), pytest.approx(4.0, **near)),
        "decode": (pytest.approx(4.0, **near), pytest.approx(8.0, **near)),
    }
    assert request.start_time / 1e9 == pytest.approx(arrival_s, abs=1e-5)
    assert request.end_time / 1e9 >= arrival_s + 10.0


def test_phases_say_their_emulated_times_and_joules(server: Server) -> None:
    _, spans = served(server)
    begin, end, chips, facility = (each.name for each in PHASE_ATTRIBUTES)

    assert {name: dict(spans[name].attributes) for name in ("queue", "prefill", "decode")} == {
        "queue": {begin: 50.0, end: 50.1},
        "prefill": {begin: 50.1, end: 50.3, chips: 6.0, facility: 9.0},
        "decode": {begin: 50.3, end: 50.6, chips: 1.0, facility: 1.5},
    }


def test_a_trace_that_is_not_sampled_makes_no_span(server: Server) -> None:
    _, spans = served(server, flags=NOT_SAMPLED)

    assert spans == {}


def test_a_request_that_failed_before_it_was_computed_waited_till_its_end(server: Server) -> None:
    arrival_s = time.time() - 1.0
    server.begin(arrival_s)
    spans = server.output(
        arrival_s + 0.5,
        7.5,
        finish_reason=FinishReason.ERROR,
        events=[event(EngineCoreEventType.QUEUED, 7.0)],
        kv_transfer_params={TRACE_KEY: list(RequestTrace(DILATION).message())},
    )
    found = {span.name: span for span in spans}
    request, queue = found["llm_request"].attributes, found["queue"]
    assert request is not None
    assert queue.attributes is not None

    assert "ultraserve.rank" not in request
    assert request["ultraserve.chip_joules"] == 0.0
    assert request["gen_ai.latency.time_in_queue"] == pytest.approx(0.5)
    assert request["gen_ai.latency.time_in_model_prefill"] == 0.0
    assert request["gen_ai.latency.e2e"] == pytest.approx(0.05, abs=1e-6)
    assert queue.attributes["ultraserve.emulated.end_s"] == 7.5


def test_a_prefill_that_seems_to_begin_before_the_request_came_begins_as_it_came() -> None:
    stamps = Stamps(
        wall_arrival_s=100.0,
        wall_first_token_s=100.5,
        wall_end_s=101.0,
        queued_s=1.0,
        scheduled_s=1.0,
        first_token_s=1.2,  # 2 wall seconds, of which the host has caught up with some
        end_s=1.3,
    )
    queue, prefill, _ = phases(TRACE, stamps, EpochMap.at(now_ns=0, wall_ns=0, dilation=DILATION))

    assert (queue.wall_begin_s, queue.wall_end_s) == (100.0, 100.0)
    assert (prefill.wall_begin_s, prefill.wall_end_s) == (100.0, 100.5)


def test_every_attribute_of_ours_is_one_that_is_described(server: Server) -> None:
    _, spans = served(server)
    request = {each.name for each in REQUEST_ATTRIBUTES}
    part = {each.name for each in PHASE_ATTRIBUTES}

    found = {name for name in spans["llm_request"].attributes if name.startswith("ultraserve.")}
    assert found == request
    assert set(spans["decode"].attributes) == part


def test_a_processor_that_does_not_trace_is_left_alone(exporter: InMemorySpanExporter) -> None:
    server = Server(exporter, traces=False)

    assert "do_tracing" not in vars(server.processor)


def test_spans_without_the_stats_they_are_made_of_are_refused(server: Server) -> None:
    engine = SimpleNamespace(
        output_processor=OutputProcessor(None, log_stats=False, tracing_enabled=True),
        log_stats=False,
        vllm_config=server.engine.vllm_config,
    )
    with pytest.raises(ConfigError, match=r"--disable-log-stats=True: .* --otlp-traces"):
        extend_spans(engine)
