from prometheus_client import CollectorRegistry

from serving.telemetry.gateway_metrics import GatewayMetrics


def test_gauges_are_read_when_they_are_asked_for_and_counters_when_it_happens() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    inside = [3.0]
    metrics.follow(
        "batch",
        in_flight=lambda: inside[0],
        waiting=lambda: 2.0,
        waiting_tokens=lambda: 200.0,
    )
    metrics.entered("batch")
    metrics.left("batch", "finished")
    metrics.refused("batch", "batch_wait")
    metrics.waited("batch", 0.3)
    metrics.limit("interactive_headroom", 0.25)
    inside[0] = 7.0

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ultraserve_admission_{name}", labels)

    of = {"class": "batch"}
    assert value("in_flight", **of) == 7.0
    assert value("waiting_requests", **of) == 2.0
    assert value("waiting_tokens", **of) == 200.0
    assert value("requests_total", **of, outcome="entered") == 1.0
    assert value("requests_total", **of, outcome="finished") == 1.0
    assert value("refused_total", **of, reason="batch_wait") == 1.0
    assert value("wait_seconds_bucket", **of, le="0.25") == 0.0
    assert value("wait_seconds_bucket", **of, le="0.5") == 1.0
    assert value("limit", limit="interactive_headroom") == 0.25
