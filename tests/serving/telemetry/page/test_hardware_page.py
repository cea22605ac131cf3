"""The page of 144 chips: every family, bounded label sets, values of the report."""

from collections import Counter

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from emulator.memory.lnc import core_map
from emulator.specs.chips import chip_by_name
from emulator.ultraserver.step_cost import ENGINE_NAMES
from serving.telemetry.device_memory import CATEGORIES
from serving.telemetry.families.chips import CHIPS, HBM
from serving.telemetry.families.guide_table import FAMILIES
from serving.telemetry.families.neuron import NEURON
from serving.telemetry.families.partition import (
    HANDOVER_AGE,
    PARTITION,
    TRAINING_COMPUTED,
    TRAINING_LAG,
    TRAINING_LOSS,
    TRAINING_SHARE,
)
from serving.telemetry.host_meter import HostReading
from serving.telemetry.page.neuron_page import Instance
from serving.telemetry.page.snapshot_page import age_page, snapshot_page
from serving.wire.machine_snapshot import MachineSnapshot
from tests.serving.plugin.leased_requests import drain
from tests.serving.plugin.running_engine import lose
from tests.serving.plugin.seen_engine import Seen, full_system

SHOWN = [name for each in (*PARTITION, *CHIPS, *NEURON) for name in each.names]
OF_TRAINING = (TRAINING_LOSS, TRAINING_LAG, TRAINING_SHARE, TRAINING_COMPUTED)
OF_LEASES = {each.name for each in (HANDOVER_AGE, *OF_TRAINING)}  # absent while no chip is lent
CORES_PER_CHIP = 4
HOST = HostReading(
    cpus=2,
    cpu_share={"user": 0.5, "idle": 0.5},
    server_share={"user": 0.25, "system": 0.0},
    memory_total_bytes=8 * 10**9,
    memory_used_bytes=10**9,
    swap_total_bytes=0,
    swap_used_bytes=0,
)
LOOK = age_page(age_s=0.5, took_s=0.01)


@pytest.fixture(scope="module")
def report() -> MachineSnapshot:
    return full_system()


@pytest.fixture(scope="module")
def page(report: MachineSnapshot) -> dict[str, Metric]:
    instance = Instance(
        instance_type="trn3-nl72x2",
        runtime_tag="7",
        cores=core_map(chip_by_name("trainium3"), report.state.partition.lnc),
    )
    text = LOOK + snapshot_page(report, instance, HOST)
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.long
def test_every_family_is_on_the_page_and_none_besides(page: dict[str, Metric]) -> None:
    assert set(page) == {family.name for family in SHOWN} - OF_LEASES
    for family in SHOWN:
        if family.name not in OF_LEASES:
            shown = page[family.name]
            assert (shown.type, shown.documentation) == (family.kind, family.help)
            assert all(set(s.labels) == set(family.labels) for s in shown.samples), family.name
            assert all(s.name == family.sample for s in shown.samples), family.name


def test_names_are_of_one_family_each() -> None:
    names = Counter(family.name for family in FAMILIES)
    assert max(names.values()) == 1


@pytest.mark.long
def test_label_sets_of_144_chips_are_bounded(page: dict[str, Metric]) -> None:
    series = {name: len(family.samples) for name, family in page.items()}
    owners = series.pop(HBM.name)
    # Each chip has a state, and one value of the rest of its families, but six of the engines'.
    of_chips = {family.name: 144 for family in CHIPS if family is not HBM}
    of_chips["ultraserve_chip_engine_busy_seconds"] = 144 * len(ENGINE_NAMES)
    assert {name: series[name] for name in of_chips} == of_chips
    assert owners <= 144 * 16  # groups of weights, KV, activations, collectives, microcode
    cores = 144 * CORES_PER_CHIP
    assert series["neuroncore_utilization_ratio"] == cores
    assert all(series[f"neuroncore_memory_usage_{name}"] == cores for name in CATEGORIES)
    assert series["hardware_ecc_events"] == 144 * 4
    ranks = [name for name in series if name.startswith("ultraserve_rank_")]
    assert {series[name] for name in ranks if "rank_power" not in name} <= {144, 2}
    # All together; a test of what a year of runs would cost a Prometheus.
    assert sum(series.values()) + owners < 10_000


@pytest.mark.long
def test_values_are_the_report_s(report: MachineSnapshot, page: dict[str, Metric]) -> None:
    def of(name: str, **labels: str) -> float:
        return next(s.value for s in page[name].samples if labels.items() <= s.labels.items())

    assert of("ultraserve_chip_joules", chip="143") == report.meters[143].joules
    sent = of("ultraserve_chip_dispatched_bytes", chip="143")
    assert (
        0 < sent == report.meters[143].figures["dispatched_bytes"] < report.meters[143].link_bytes
    )
    assert of("ultraserve_chip_power_watts", chip="7") == report.state.chips[7].watts
    assert of("ultraserve_tokens", kind="output") == report.telemetry.output_tokens == 144
    total = sum(s.value for s in page["ultraserve_facility_part_watts"].samples)
    assert total == pytest.approx(report.power.facility_watts)
    per_megawatt = "ultraserve_tokens_per_second_per_megawatt"
    assert report.power.window is not None
    for each in report.power.window.tokens_per_megawatt:
        assert of(per_megawatt, kind="output", basis=each.basis) == each.output
    held = sum(s.value for s in page[HBM.name].samples)
    assert held == sum(chip.hbm_used_bytes for chip in report.state.chips)
    by_category = sum(
        s.value for name in CATEGORIES for s in page[f"neuroncore_memory_usage_{name}"].samples
    )
    assert (
        by_category
        == held
        == of("neuron_runtime_memory_used_bytes", memory_location="neuron_device")
    )
    assert of("neuroncore_utilization_ratio", neuroncore="575") == report.meters[143].utilization
    assert of("execution_status", status_type="completed") == 1
    assert of("execution_latency_seconds", percentile="p50") == report.step_times.p50_s


@pytest.mark.long
def test_a_chip_without_neuroncores_has_none_of_the_vendor_s_families(
    report: MachineSnapshot,
) -> None:
    instance = Instance(instance_type="dgx-h100", runtime_tag="7", cores=None)
    text = LOOK + snapshot_page(report, instance, HOST)
    names = {family.name for family in text_string_to_metric_families(text)}
    assert not names & {family.name for family in NEURON}


def shown(report: MachineSnapshot, lnc: int) -> dict[str, Metric]:
    cores = core_map(chip_by_name("trainium3"), lnc)
    instance = Instance(instance_type="trn3-tray", runtime_tag="7", cores=cores)
    text = LOOK + snapshot_page(report, instance, HOST)
    return {family.name: family for family in text_string_to_metric_families(text)}


def chips_of(family: Metric) -> set[str]:
    return {sample.labels["chip"] for sample in family.samples}


def phases_of(page: dict[str, Metric]) -> dict[str, str]:
    return {s.labels["chip"]: s.labels["phase"] for s in page["ultraserve_chip_state"].samples}


SHARES = tuple(f"ultraserve_chip_{of}_ratio" for of in ("utilization", "hbm_utilization"))


def test_chips_that_train_have_watts_and_no_share_of_a_time_that_nobody_metered() -> None:
    seen = Seen(computes=False, model="gpt-oss-20b", chips=8)
    seen.step(0, 4)
    drain(seen, 4, 5, 6, 7)
    page = shown(seen.look(), seen.state().partition.lnc)

    assert phases_of(page) == {str(n): "serving" if n < 4 else "training" for n in range(8)}
    for name in (*SHARES, "ultraserve_chip_link_utilization_ratio"):
        assert chips_of(page[name]) == {"0", "1", "2", "3"}
    per_chip = len(page["neuroncore_memory_usage_tensors"].samples) // 8
    cores = {sample.labels["neuroncore"] for sample in page["neuroncore_utilization_ratio"].samples}
    assert cores == {str(core) for core in range(4 * per_chip)}
    assert chips_of(page["ultraserve_chip_power_watts"]) == {str(n) for n in range(8)}


@pytest.mark.long
def test_a_lost_chip_is_out_and_its_seat_is_the_spare_s() -> None:
    seen = Seen(spares=1)
    seen.step(0, 1, 2, 3)
    before = phases_of(shown(seen.look(), seen.state().partition.lnc))
    assert before == dict.fromkeys("0123", "serving") | {"4": "spare"}
    seen.inject(lose(1))
    seen.step(0, 2)
    seen.step(0, 1, 2, 3)
    page = shown(seen.look(), seen.state().partition.lnc)

    assert phases_of(page) == dict.fromkeys("0234", "serving") | {"1": "out"}
    assert all(chips_of(page[name]) == set("0234") for name in SHARES)


@pytest.mark.long
def test_parts_of_the_facility_are_named_without_their_unit(page: dict[str, Metric]) -> None:
    parts = {sample.labels["part"] for sample in page["ultraserve_facility_part_watts"].samples}
    assert {"chip", "cooling"} <= parts
    assert not [part for part in parts if part.endswith("watts")]
