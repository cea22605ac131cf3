"""Whole texts of the commands that start no server, each held against its golden file.

Those that simulate are `process`: what they import looks at the platform with `file`.
"""

import re
from pathlib import Path

import pytest

from serving.main import main
from tests.golden import GoldenFolder
from tests.serving.commands.small_day import SMALL_DAY, SMALL_NIGHT, hours, lengths, small_night

pytestmark = pytest.mark.long

PARETO = (
    *("pareto", "--model", "gpt-oss-20b", "--systems", "dgx-h200,trn2.48xlarge", "--tp", "1"),
    *("--ep", "1,2", "--precision", "fp8", "--batch", "1,16", "--processes", "1"),
)
CLAIMS = (
    *("pareto", "--model", "gpt-oss-120b", "--systems", "trn2-ultraserver,trn3-nl72x2"),
    *("--lnc", "2", "--ep", "4,16", "--tp", "1", "--precision", "fp8", "--batch", "1,16,64"),
    *("--processes", "1"),
)
PLAN = (
    *("plan", "--model", "qwen3-30b-a3b", "--slo", "ttft=300ms,tpot=20ms@p90", "--chips", "1"),
    *("--lnc", "2", "--requests", "30", "--processes", "1", "--tries", "1"),
    *("--rate", "60", "--input", "400", "--output", "12"),
)
TOKENS = ("--output-tokens-per-s", "5000", "--input-tokens-per-s", "7000")

EXPLAIN = (
    *("explain", "step", "--model", "gpt-oss-120b", "--chips", "8", "--tp", "2"),
    *("--batch", "16", "--context", "2000", "--rows", "8"),
)

COMMANDS = {
    "explain_step": EXPLAIN,
    "explain_step_overlapped": (
        *(*EXPLAIN, "--overlap", "two-batch", "--prefill-tokens", "512", "--calibration"),
        "roofline",
    ),
    "pareto": PARETO,
    "pareto_priced_pools": (
        *PARETO,
        *("--price-chip-hour", "2", "--serving", "disaggregated"),
    ),
    "pareto_claims": CLAIMS,
    "power": ("power", "trn3-nl72x2"),
    "power_priced": (
        *("power", "trn3-nl72x2", "--busy", "dma=0.8,tensor_fp8=0.2", *TOKENS),
        *("--price-chip-hour", "2", "--price-kwh", "0.1", "--sources"),
    ),
    "describe": ("describe",),
    "describe_system": ("describe", "trn3-nl72x2"),
    "describe_chip": ("describe", "trainium3"),
    "describe_model": ("describe", "gpt-oss-120b"),
    "collectives": ("collectives",),
    "collectives_beside": ("collectives", "--beside", "kv-transfer=64MiB,checkpoint=1GiB"),
    "recipe": (
        *("recipe", "--model", "deepseek-v3", "--precision", "fp8", "--tp", "1,2", "--pp", "2,4"),
        *("--ep", "36,72", "--virtual-stages", "1", "--rows", "3", "--overlap", "two-batch"),
    ),
}
SIMULATIONS = {
    "pareto_simulated": (
        *("pareto", "--model", "qwen3-30b-a3b", "--systems", "trn3-nl72x2", "--chips", "1,2"),
        *("--lnc", "2", "--tp", "1", "--precision", "stored,fp8", "--batch", "1,16,64"),
        *("--input", "uniform:200-600", "--output", "uniform:8-16", "--requests", "60"),
        *("--slo", "ttft=300ms,tpot=20ms@p90", "--budget", "10m", "--processes", "1"),
    ),
    "plan": PLAN,
    "plan_priced_pools": (*(*PLAN, "--price-hour", "500", "--price-kwh", "0.1"),),
    "plan_mix": (
        *("plan", "--model", "qwen3-30b-a3b=2,gpt-oss-20b=1", *PLAN[3:], "--price-hour", "500"),
        *("--prefill-policy", "none", "--budget", "5m"),
    ),
    "plan_classes": (
        *("plan", *PLAN[1:3], *PLAN[5:11], "--prefill-policy", "none", "--no-pools"),
        *("--budget", "5m"),
        *("--traffic-class", "chat rate=40 input=300 output=12 slo=ttft=200ms,tpot=20ms@p90"),
        *("--traffic-class", "batch rate=8 input=900 output=24 slo=ttft=2s@p80 priority=1"),
    ),
    "plan_outlook": (
        *(*PLAN, "--prefill-policy", "none", "--no-pools", "--growth", "25%/month", "--months"),
        *("18", "--surge", "100%"),
    ),
    "compare": (
        *("compare", *PLAN[1:], "--prefill-policy", "none", "--no-pools"),
        *("--systems", "trn3-nl72x2,dgx-h200,trainium4"),
    ),
    "profile": (
        "profile",
        "--model",
        "qwen3-30b-a3b",
        "--requests",
        "20",
        "--output",
        "128",
        "--out",
        "trace.json",
    ),
}


def text_of(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(command)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_its_report(
    name: str, golden: GoldenFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    golden.holds(f"{name}.txt", text_of(COMMANDS[name], capsys))


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "plan_classes" else [])
        for name in SIMULATIONS
    ],
)
def test_a_simulation_prints_its_report(
    name: str,
    golden: GoldenFolder,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    golden.holds(f"{name}.txt", text_of(SIMULATIONS[name], capsys))


@pytest.mark.process
def test_a_day_prints_what_its_policies_gave(
    golden: GoldenFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ("--trace", str(hours(tmp_path)), "--lengths", str(lengths(tmp_path)))
    text = text_of(("day", *SMALL_DAY, *files), capsys)
    golden.holds("day.txt", re.sub(r"wall time: .*|[\d.]+ s of wall time", "WALL TIME", text))


@pytest.mark.process
@pytest.mark.slow
def test_a_night_prints_what_its_tenants_got(
    golden: GoldenFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = text_of(("day", "--tenants", str(small_night(tmp_path)), *SMALL_NIGHT), capsys)
    golden.holds("day_tenants.txt", re.sub(r"wall time: .*", "WALL TIME", text))
