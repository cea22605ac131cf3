"""Alerts of the machine: promtool judges them by series that the emulator itself gives."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from emulator.power.draw import throttle_factor
from emulator.power.system_power import SystemPower
from emulator.specs.systems import SYSTEMS
from serving.telemetry.page.snapshot_page import add_partition
from serving.telemetry.page.text_page import TextPage
from serving.wire.machine_snapshot import MachineSnapshot
from tests.deploy.prometheus.rule_files import RULE_FILES
from tests.deploy.prometheus.test_rules import promtool_done
from tests.serving.plugin.seen_engine import Seen

pytestmark = pytest.mark.process

INTERVALS = 24
"""Of 5 s each; longer than any of these alerts waits."""

WANTED = np.linspace(1.01, 1.6, 8)
"""What chips would draw, over what they may."""

Series = dict[str, float]


def firing(alert: str, series: Series, folder: Path) -> bool:
    """Whether `alert` fires when `series`, by name and labels, stay as they are."""
    case: dict[str, Any] = {
        "interval": "5s",
        "input_series": [
            {"series": name, "values": f"{value!r}x{INTERVALS}"} for name, value in series.items()
        ],
        "alert_rule_test": [{"alertname": alert, "eval_time": f"{5 * INTERVALS}s"}],
    }
    path = folder / "case.yml"
    path.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(each) for each in RULE_FILES],
                "evaluation_interval": "5s",
                "tests": [case],
            }
        )
    )
    done = promtool_done("test", "rules", path)
    said = done.stdout + done.stderr
    fires = f"alertname: {alert}" in said
    assert fires or done.returncode == 0, said
    return fires


def rack_watts() -> Series:
    """Each system's rack at full throttle, as the engine does it: all of its chips alike."""
    series: Series = {}
    for name, system in SYSTEMS.items():
        power, idle = SystemPower(system), system.chip.idle_watts.value
        cap = power.chip_cap_watts
        chips = system.chips.count // (system.racks.count * system.units)
        wanted = np.maximum(cap * WANTED, idle)
        factors = throttle_factor(system.chip, wanted, cap_watts=cap)
        for number, watts in enumerate(idle + (wanted - idle) / factors):
            drawn = power.facility_watts(chips * float(watts), chips=chips)
            labels = f'{{job="ultraserve", instance="{name}-{number}", rack="0"}}'
            series[f"ultraserve_rack_power_watts{labels}"] = float(drawn.it_watts)
            series[f"ultraserve_rack_budget_watts{labels}"] = float(drawn.provisioned_watts)
    return series


def test_no_system_at_full_throttle_is_over_its_budget_and_one_percent_more_is(
    tmp_path: Path,
) -> None:
    series = rack_watts()
    draws = {name for name in series if name.startswith("ultraserve_rack_power_watts")}
    over = [
        name for name in draws if series[name] > series[name.replace("power_watts", "budget_watts")]
    ]
    assert over, "rounding alone goes over, which is what the margin is for"

    assert not firing("PowerOverBudget", series, tmp_path)
    more = {name: value * (1.01 if name in draws else 1.0) for name, value in series.items()}
    assert firing("PowerOverBudget", more, tmp_path)


@pytest.fixture(scope="module")
def report() -> MachineSnapshot:
    engine = Seen()
    engine.step(0, 1)
    return engine.look()


def page_series(report: MachineSnapshot) -> Series:
    """The partition's series of one page."""
    page = TextPage()
    add_partition(page, report)
    series: Series = {}
    for family in text_string_to_metric_families(page.text()):
        for sample in family.samples:
            labels = {"job": "ultraserve", "instance": "a"} | sample.labels
            named = ", ".join(f'{name}="{value}"' for name, value in labels.items())
            series[f"{sample.name}{{{named}}}"] = sample.value
    return series


def test_one_full_rank_beside_empty_ones_is_an_alert(
    report: MachineSnapshot, tmp_path: Path
) -> None:
    def with_used(share: float) -> MachineSnapshot:
        first, *others = report.state.ranks
        assert others
        full = msgspec.structs.replace(
            first, kv_blocks=1000, kv_blocks_used=int(1000 * share), requests_running=1
        )
        rest = (msgspec.structs.replace(each, kv_blocks_used=0) for each in others)
        state = msgspec.structs.replace(report.state, ranks=(full, *rest))
        return msgspec.structs.replace(report, state=state)

    assert firing("KvCacheNearFull", page_series(with_used(1.0)), tmp_path)
    assert not firing("KvCacheNearFull", page_series(with_used(0.9)), tmp_path)


def test_a_page_that_shows_a_machine_and_its_look_s_age_is_seen(
    report: MachineSnapshot, tmp_path: Path
) -> None:
    labels = '{job="ultraserve", instance="a"}'
    series = page_series(report) | {f"up{labels}": 1.0}
    assert firing("EngineUnseen", series, tmp_path)
    series[f"ultraserve_hardware_snapshot_age_seconds{labels}"] = 0.1
    assert not firing("EngineUnseen", series, tmp_path)
