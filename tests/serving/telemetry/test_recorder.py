import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.families.engine import INFO as INFO_FAMILY
from serving.telemetry.families.engine import SNAPSHOT, WALL_E2E, WALL_TTFT, SnapshotFamily
from serving.telemetry.recorder import Recorder
from serving.wire.telemetry import Telemetry
from tests.serving.telemetry.telemetry_snapshots import a_telemetry

INFO = {name: f"the {name}" for name in INFO_FAMILY.labels}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def recorder(registry: CollectorRegistry) -> Recorder:
    return Recorder(INFO, registry)


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of the page that a scraper would read, without labels."""
    page = generate_latest(registry).decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def sample_name(kind: str, name: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def test_each_metric_is_defined_once_and_shows_a_field_of_the_a_telemetry() -> None:
    names = [metric.name for metric in SNAPSHOT]
    shown_fields = [metric.field for metric in SNAPSHOT]

    assert len(set(names)) == len(names)
    assert all(hasattr(Telemetry, field) for field in shown_fields)
    assert all(name.startswith("ultraserve_") for name in names)
    assert all(metric.help.endswith(".") for metric in SNAPSHOT)


def test_after_a_snapshot_every_family_has_the_snapshot_s_value(
    recorder: Recorder, registry: CollectorRegistry
) -> None:
    recorder.record(a_telemetry())

    values = shown(registry)
    for metric in (name for each in SNAPSHOT for name in each.names):
        found = values[sample_name(metric.kind, metric.name)]
        assert found == getattr(a_telemetry(), metric.field), metric.name


def test_counters_follow_totals_and_gauges_the_last_value(
    recorder: Recorder, registry: CollectorRegistry
) -> None:
    later = a_telemetry(
        emulated_s=19.5, steps=1250, chip_joules=21_750.0, chip_watts=400.0, facility_watts=700.0
    )
    for each in (a_telemetry(), a_telemetry(), later):
        recorder.record(each)

    values = shown(registry)
    for metric in SNAPSHOT:
        found = values[sample_name(metric.kind, metric.name)]
        assert found == pytest.approx(getattr(later, metric.field)), metric.name


@pytest.mark.parametrize(
    "metric", [m for m in SNAPSHOT if m.kind == "counter"], ids=lambda m: m.name
)
def test_a_total_that_rounding_took_something_from_does_not_fall(
    metric: SnapshotFamily, recorder: Recorder, registry: CollectorRegistry
) -> None:
    now = getattr(a_telemetry(), metric.field)
    recorder.record(a_telemetry())
    recorder.record(a_telemetry(**{metric.field: now * (1 - 1e-12)}))
    assert shown(registry)[metric.sample] == now

    recorder.record(a_telemetry(**{metric.field: now * 2}))
    assert shown(registry)[metric.sample] == pytest.approx(2 * now)


def test_the_labels_say_what_is_emulated(recorder: Recorder, registry: CollectorRegistry) -> None:
    assert registry.get_sample_value(INFO_FAMILY.name, INFO) == 1.0


def test_an_info_without_one_of_its_labels_is_refused() -> None:
    for missing in INFO_FAMILY.labels:
        with pytest.raises(KeyError, match=missing):
            Recorder({k: v for k, v in INFO.items() if k != missing}, CollectorRegistry())


def test_wall_latencies_are_counted_under_names_of_their_own(
    recorder: Recorder, registry: CollectorRegistry
) -> None:
    recorder.observe_wall([0.2, 0.4], [3.0])
    recorder.observe_wall([], [])

    values = shown(registry)
    assert (values[f"{WALL_TTFT.name}_count"], values[f"{WALL_E2E.name}_count"]) == (2, 1)
    assert values[f"{WALL_TTFT.name}_sum"] == pytest.approx(0.6)
    assert values[f"{WALL_E2E.name}_sum"] == 3.0
