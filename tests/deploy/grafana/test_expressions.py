"""What the shared expressions compute: worked by hand, and run by Prometheus's own promtool.

Every series is scraped each 5 s for ten minutes; windows are of one minute.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from deploy.grafana.dashboards import serving
from deploy.grafana.dashboards.expressions import (
    CLOCK,
    emulated_rate,
    mean,
    or_zero,
    over,
    picked,
    quantile,
    rate,
    total,
)
from deploy.grafana.dashboards.panels import PHASES, phases
from tests.deploy.grafana.template import filled
from tests.system_programs import program

pytestmark = pytest.mark.process

CLOCK_SERIES = {'ultraserve_emulated_seconds_total{instance="a"}': "0+0.5x120"}  # 0.1 s each second
CHOSEN = {"__rate_interval": "1m", "instance": ".*", "rack": ".*", "chip": ".*"}

Samples = Sequence[tuple[str, float]]


def check(folder: Path, series: Mapping[str, str], expression: str, samples: Samples) -> None:
    """Let promtool compute `expression` after five minutes; it has to give these samples."""
    asked = {
        "expr": filled(expression, CHOSEN),
        "eval_time": "5m",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
    }
    given = [{"series": name, "values": values} for name, values in series.items()]
    case = {"interval": "5s", "input_series": given, "promql_expr_test": [asked]}
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    done = subprocess.run(
        (program("promtool"), "test", "rules", str(path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{expression}\n{done.stdout}{done.stderr}"


def test_a_rate_by_the_emulated_clock_is_the_walls_over_the_clocks(tmp_path: Path) -> None:
    # 250 tokens in 5 s of the wall are 50 each second; 0.1 s of the machine pass in it: 500.
    tokens = 'ultraserve_tokens_total{instance="a", kind="output"}'

    check(
        tmp_path,
        CLOCK_SERIES | {tokens: "0+250x120"},
        emulated_rate(picked("ultraserve_tokens_total"), "kind"),
        [('{instance="a", kind="output"}', 500.0)],
    )


def test_the_clock_says_how_many_emulated_seconds_a_second_of_the_wall_has(tmp_path: Path) -> None:
    check(tmp_path, CLOCK_SERIES, CLOCK, [('{instance="a"}', 0.1)])


def test_each_instance_goes_by_its_own_clock(tmp_path: Path) -> None:
    series = {
        'ultraserve_emulated_seconds_total{instance="a"}': "0+0.5x120",
        'ultraserve_emulated_seconds_total{instance="b"}': "0+5x120",
        'x_total{instance="a", chip="0"}': "0+10x120",
        'x_total{instance="a", chip="1"}': "0+20x120",
        'x_total{instance="b", chip="0"}': "0+10x120",
    }
    by_chip = [
        ('{instance="a", chip="0"}', 20.0),
        ('{instance="a", chip="1"}', 40.0),
        ('{instance="b", chip="0"}', 2.0),
    ]

    check(tmp_path, series, emulated_rate(picked("x_total"), "chip"), by_chip)


def test_there_is_no_quotient_where_nothing_happened(tmp_path: Path) -> None:
    series = {'joules_total{instance="a"}': "0+7x120", 'tokens_total{instance="a"}': "9+0x120"}

    check(tmp_path, series, over(rate(picked("joules_total")), rate(picked("tokens_total"))), [])


def test_an_instance_without_a_value_has_zero_where_that_is_what_it_means(tmp_path: Path) -> None:
    series = {
        'ultraserve_info{instance="a"}': "1x120",
        'ultraserve_info{instance="b"}': "1x120",
        'ALERTS{instance="b", alertstate="firing"}': "1x120",
    }
    firing = or_zero(total(picked("ALERTS", 'alertstate="firing"')))

    check(tmp_path, series, firing, [('{instance="a"}', 0.0), ('{instance="b"}', 1.0)])


@pytest.mark.parametrize(
    ("panel", "metric", "labels"),
    [
        (0, "ultraserve_replica_role", 'role="prefill"'),
        (1, "ultraserve_replica_role_changes_total", 'replica="1"'),
        (2, "ultraserve_replays_total", 'reason="lost"'),
    ],
)
def test_an_engine_without_replicas_draws_no_line_without_a_name(
    panel: int, metric: str, labels: str, tmp_path: Path
) -> None:
    series = {
        'ultraserve_info{instance="service"}': "1x120",
        'ultraserve_info{instance="engine"}': "1x120",
        f'{metric}{{instance="service", {labels}}}': "2x120",
    }
    expression = serving._replicas()[panel].build().targets[0].expr  # type: ignore[index, attr-defined]

    check(tmp_path, series, expression, [(f'{{instance="service", {labels}}}', 2.0)])


def test_the_mean_of_a_histogram_is_that_of_the_window_alone(tmp_path: Path) -> None:
    # Observations of 2 s each in the last minutes; before, there were 1,000 of 9 s.
    series = {
        'h_sum{instance="a"}': "9000+10x120",
        'h_count{instance="a"}': "1000+5x120",
    }

    check(tmp_path, series, mean("h"), [('{instance="a"}', 2.0)])


@pytest.mark.parametrize(("share", "expected_s"), [(0.5, 1.0), (0.75, 2.0), (0.9, 2.6)])
def test_a_quantile_lies_within_its_bucket(share: float, expected_s: float, tmp_path: Path) -> None:
    # Of ten observations five are up to 1 s, three from 1 to 2.2 s, two from 2.2 to 3 s.
    series = {
        'h_bucket{instance="a", le="1"}': "0+5x120",
        'h_bucket{instance="a", le="2.2"}': "0+8x120",
        'h_bucket{instance="a", le="3"}': "0+10x120",
        'h_bucket{instance="a", le="+Inf"}': "0+10x120",
    }

    check(tmp_path, series, quantile(share, "h"), [('{instance="a"}', expected_s)])


@pytest.mark.parametrize("name", [name for name, _ in PHASES])
def test_the_timeline_shows_the_number_of_a_chips_phase(name: str, tmp_path: Path) -> None:
    health, phase = ("lost", "serving") if name == "not up" else ("up", name)
    labels = f'instance="a", rack="0", tray="0", chip="7", rank="1", health="{health}"'
    panel = phases("", "", 'rack=~"$rack"').build()
    words = panel.field_config.defaults.mappings[0].options  # type: ignore[union-attr]
    (number,) = [int(key) for key, word in words.items() if word.text == name]

    check(
        tmp_path,
        {f'ultraserve_chip_state{{{labels}, phase="{phase}"}}': "1x120"},
        panel.targets[0].expr,  # type: ignore[index, attr-defined]
        [('{instance="a", rack="0", chip="7"}', number)],
    )
