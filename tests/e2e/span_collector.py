"""A collector of OpenTelemetry spans, by OTLP over gRPC and HTTP; it keeps all.

Messages and the gRPC service are generated code of the opentelemetry-proto package.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
"""The environment of a server that sends spans within 200 ms instead of 5 s."""

HTTP = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
"""The environment of a server that sends them over HTTP instead of gRPC."""

_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One span: message, attributes as plain values, and those of its resource."""

    span: Span
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def parent(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def begin_s(self) -> float:
        return self.span.start_time_unix_nano / 1e9

    @property
    def end_s(self) -> float:
        return self.span.end_time_unix_nano / 1e9


class SpanCollector:
    """Listens while entered; spans are in order of arrival."""

    def __init__(self) -> None:
        self._spans: list[Received] = []
        self._came = threading.Condition()

    def __enter__(self) -> Self:
        self._grpc = grpc.server(futures.ThreadPoolExecutor(2))
        pb_grpc.add_TraceServiceServicer_to_server(_Service(self._take), self._grpc)
        self._grpc_port = self._grpc.add_insecure_port(f"{_HOST}:0")
        self._grpc.start()
        self._http = ThreadingHTTPServer((_HOST, 0), _handler(self._take))
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._grpc.stop(grace=None).wait()

    @property
    def grpc_endpoint(self) -> str:
        return f"http://{_HOST}:{self._grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return f"http://{_HOST}:{self._http.server_port}/v1/traces"

    def of_trace(self, trace_id: str, count: int, timeout_s: float = 60.0) -> list[Received]:
        """The spans of a trace, as soon as there are `count`."""
        return self._wait_for(lambda span: span.trace_id == trace_id, count, timeout_s)

    def named(self, name: str, *, at_least: int = 0, timeout_s: float = 60.0) -> list[Received]:
        """All spans of that name, as soon as there are `at_least` so many."""
        return self._wait_for(lambda span: span.name == name, at_least, timeout_s)

    def _wait_for(
        self, wanted: Callable[[Received], bool], count: int, timeout_s: float
    ) -> list[Received]:
        found: list[Received] = []

        def enough() -> bool:
            found[:] = [span for span in self._spans if wanted(span)]
            return len(found) >= count

        with self._came:
            assert self._came.wait_for(enough, timeout_s), (
                f"{len(found)} of {count} spans came; all: {[span.name for span in self._spans]}"
            )
        return found

    def _take(self, request: pb.ExportTraceServiceRequest) -> None:
        received = [
            Received(
                span=span,
                attributes=_plain(span.attributes),
                resource=_plain(of_resource.resource.attributes),
            )
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]
        with self._came:
            self._spans.extend(received)
            self._came.notify_all()


class _Service(pb_grpc.TraceServiceServicer):
    def __init__(self, take: Callable[[pb.ExportTraceServiceRequest], None]) -> None:
        self._take = take

    def Export(  # noqa: N802  the name that the service has
        self, request: pb.ExportTraceServiceRequest, _: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        self._take(request)
        return pb.ExportTraceServiceResponse()


def _handler(
    take: Callable[[pb.ExportTraceServiceRequest], None],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known = self.path == "/v1/traces"
            known &= self.headers["Content-Type"] == "application/x-protobuf"
            if known:
                take(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if known else 400)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
            """Say nothing."""

    return Handler


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None, "an attribute without a value"
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
