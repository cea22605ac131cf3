"""Extends vLLM's span `llm_request` by emulated attributes and phases.

vLLM makes the span in the output processor's `do_tracing`, wrapped here: durations are emulated, a
span processor adds our attributes at its start, phases become spans below it. A span's own begin
and end are the wall's. Names: `serving.telemetry.span_attributes`. In virtual time a request has
vLLM's span alone.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.trace import set_span_in_context
from opentelemetry.util.types import AttributeValue

from emulator.errors import ConfigError
from emulator.sim.epochs import EpochMap
from emulator.units import NS_PER_S
from serving.engine.request_trace import RequestTrace
from serving.plugin.platform import deployment_of
from serving.plugin.request_place import WEIGHTS_KEY
from serving.plugin.stat_logger import stat_logger_of
from serving.telemetry import span_attributes as names

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_MARK: Final = "extends_spans"

Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPhase:
    """A part of a request's life; Unix time in seconds."""

    name: str
    wall_begin_s: float
    wall_end_s: float
    attributes: Attributes


@dataclass(slots=True, kw_only=True)
class _Extension:
    """Attributes for this context's next span, and the span once started."""

    attributes: Attributes
    span: Span | None = None


_extension: ContextVar[_Extension | None] = ContextVar("ultraserve_span", default=None)


class _AddAttributes(SpanProcessor):
    """Adds the context's attributes to a span at its start: an ended one is fixed."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        extension = _extension.get()
        if extension is not None:
            span.set_attributes(extension.attributes)
            extension.span = span


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Unix and emulated seconds of a request's stages; one that ended early lacks later ones."""

    wall_arrival_s: float
    wall_first_token_s: float
    wall_end_s: float
    queued_s: float
    scheduled_s: float
    first_token_s: float
    end_s: float

    @classmethod
    def of(cls, metrics: Any, wall_end_s: float) -> "Stamps":
        """From vLLM's RequestStateStats of an ended request, where 0 is a missing stamp."""
        scheduled_s = metrics.scheduled_ts or metrics.last_token_ts
        return cls(
            wall_arrival_s=metrics.arrival_time,
            wall_first_token_s=metrics.arrival_time + metrics.first_token_latency,
            wall_end_s=wall_end_s,
            queued_s=metrics.queued_ts or scheduled_s,
            scheduled_s=scheduled_s,
            first_token_s=metrics.first_token_ts or metrics.last_token_ts,
            end_s=metrics.last_token_ts,
        )

    def wall_scheduled_s(self, epochs: EpochMap) -> float:
        """The first token's wall time less the emulated duration, at least the arrival."""
        first_ns, scheduled_ns = (
            epochs.wall_ns(round(emulated_s * NS_PER_S))
            for emulated_s in (self.first_token_s, self.scheduled_s)
        )
        before_s = (first_ns - scheduled_ns) / NS_PER_S
        return max(self.wall_arrival_s, self.wall_first_token_s - before_s)


def request_attributes(
    told: RequestTrace, stamps: Stamps, *, system: str, weights: list[str]
) -> Attributes:
    """Attributes of vLLM's span; no `ultraserve.rank` where no rank computed it."""
    attributes: dict[str, AttributeValue] = {
        names.SYSTEM.name: system,
        names.RANKS.name: told.ranks,
        names.CHIPS.name: told.chips,
        names.WEIGHTS.name: weights,
        names.DILATION.name: told.dilation,
        names.BEGIN_S.name: stamps.queued_s,
        names.SCHEDULED_S.name: stamps.scheduled_s,
        names.FIRST_TOKEN_S.name: stamps.first_token_s,
        names.END_S.name: stamps.end_s,
        names.WALL_FIRST_TOKEN_S.name: stamps.wall_first_token_s - stamps.wall_arrival_s,
        names.WALL_E2E_S.name: stamps.wall_end_s - stamps.wall_arrival_s,
        names.CHIP_JOULES.name: told.chip_joules,
        names.FACILITY_JOULES.name: told.facility_joules,
    }
    if told.ranks:
        attributes[names.RANK.name] = told.ranks[-1]
    return attributes


def phases(told: RequestTrace, stamps: Stamps, epochs: EpochMap) -> tuple[RequestPhase, ...]:
    """Queue, prefill and decode, in order."""
    wall_scheduled_s = stamps.wall_scheduled_s(epochs)

    def phase(
        name: str, wall: tuple[float, float], emulated: tuple[float, float], **more: float
    ) -> RequestPhase:
        begin_s, end_s = emulated
        attributes = {names.BEGIN_S.name: begin_s, names.END_S.name: end_s}
        return RequestPhase(
            name=name, wall_begin_s=wall[0], wall_end_s=wall[1], attributes=attributes | more
        )

    def joules(chips: float, facility: float) -> dict[str, float]:
        return {names.CHIP_JOULES.name: chips, names.FACILITY_JOULES.name: facility}

    return (
        phase(
            "queue",
            (stamps.wall_arrival_s, wall_scheduled_s),
            (stamps.queued_s, stamps.scheduled_s),
        ),
        phase(
            "prefill",
            (wall_scheduled_s, stamps.wall_first_token_s),
            (stamps.scheduled_s, stamps.first_token_s),
            **joules(told.prefill_chip_joules, told.prefill_facility_joules),
        ),
        phase(
            "decode",
            (stamps.wall_first_token_s, stamps.wall_end_s),
            (stamps.first_token_s, stamps.end_s),
            **joules(told.decode_chip_joules, told.decode_facility_joules),
        ),
    )


def in_emulated_time(
    state: Any, iteration: Any, stamps: Stamps, epochs: EpochMap
) -> tuple[Any, Any]:
    """Copies of vLLM's request state and iteration, in emulated time, with no missing stamps."""
    told_state, told_iteration = copy.copy(state), copy.copy(iteration)
    told_state.stats = metrics = copy.copy(state.stats)
    metrics.queued_ts, metrics.scheduled_ts = stamps.queued_s, stamps.scheduled_s
    metrics.first_token_ts = stamps.first_token_s
    arrival_s = stamps.wall_arrival_s
    metrics.first_token_latency = epochs.emulated_duration_s(arrival_s, stamps.wall_first_token_s)
    e2e_s = epochs.emulated_duration_s(arrival_s, stamps.wall_end_s)
    told_iteration.iteration_timestamp = stamps.wall_arrival_s + e2e_s
    return told_state, told_iteration


class RequestSpans:
    """Replaces an output processor's `do_tracing`; `plain` is vLLM's own."""

    def __init__(
        self,
        plain: Callable[[Any, Any, Any], None],
        *,
        system: str,
        clock: Callable[[], EpochMap | None],
    ) -> None:
        self._plain = plain
        self._system = system
        self._clock = clock
        self._tracer = trace.get_tracer("ultraserve")

    def trace(self, output: Any, state: Any, iteration: Any) -> None:
        """Make the spans of an ended request."""
        told = RequestTrace.of_output(output)
        if told is None or not told.dilation:
            self._plain(output, state, iteration)
            return
        # Without a logger of stats there is one epoch: the one that the request began in.
        epochs = self._clock() or EpochMap.at(now_ns=0, wall_ns=0, dilation=told.dilation)
        stamps = Stamps.of(state.stats, iteration.iteration_timestamp)
        weights = output.kv_transfer_params.get(WEIGHTS_KEY, [])
        extension = _Extension(
            attributes=request_attributes(told, stamps, system=self._system, weights=weights)
        )
        token = _extension.set(extension)
        try:
            self._plain(output, *in_emulated_time(state, iteration, stamps, epochs))
        finally:
            _extension.reset(token)
        if extension.span is not None:  # else its trace is not sampled
            self._show(extension.span, phases(told, stamps, epochs))

    def _show(self, parent: Span, parts: tuple[RequestPhase, ...]) -> None:
        below = set_span_in_context(parent)
        for part in parts:
            begin_ns, end_ns = (
                int(wall_s * NS_PER_S) for wall_s in (part.wall_begin_s, part.wall_end_s)
            )
            span = self._tracer.start_span(
                part.name, context=below, start_time=begin_ns, attributes=part.attributes
            )
            span.end(end_ns)


def extend_spans(engine: Any) -> None:
    """Extend the spans of AsyncLLM `engine`; idempotent. Raises ConfigError without its stats."""
    processor = engine.output_processor
    if not processor.tracing_enabled or hasattr(processor, _MARK):
        return
    if not engine.log_stats:
        raise ConfigError(
            "--disable-log-stats",
            True,
            "no such flag beside --otlp-traces-endpoint: spans are made of these stats",
        )
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider), "vLLM has set it"
    provider.add_span_processor(_AddAttributes())
    system = deployment_of(engine.vllm_config).system.name
    logger = stat_logger_of(engine)
    processor.do_tracing = RequestSpans(
        processor.do_tracing,
        system=system,
        clock=lambda: None if logger is None else logger.epochs,
    ).trace
    setattr(processor, _MARK, True)
