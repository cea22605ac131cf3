"""Nothing that we start imports a file of the directory that it was started in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.wire import control_call
from tests.e2e.hostile_directory import fill_with_modules, imported_in
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_process import ULTRASERVE_SCRIPT, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

LOADGEN_SCRIPT = str(Path(sys.executable).with_name("ultraserve-loadgen"))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    directory = tmp_path / "hostile"
    directory.mkdir()
    fill_with_modules(directory)
    return directory


def test_the_directory_would_be_imported_from(hostile: Path) -> None:
    subprocess.run([sys.executable, "-c", "import click"], cwd=hostile, check=True)

    assert any(line.startswith("click in ") for line in imported_in(hostile))


def test_a_server_its_training_job_and_its_load_import_nothing_of_theirs(
    hostile: Path, tmp_path: Path
) -> None:
    arguments = (
        *("--chips", "2", "--max-num-batched-tokens", "256", "--max-model-len", "512"),
        *("--clock", "dilated:20", "--disable-uvicorn-access-log"),
        *("--day-night", "fixed:1", "--group-chips", "1", "--drain-grace", "0.1s"),
        *("--train-dir", str(tmp_path / "training")),
    )
    load = ("run", "--requests", "6", "--workers", "2", "--rate", "5", "--quiet")
    sizes = ("--max-input-tokens", "40", "--max-output-tokens", "8")
    with started(ULTRASERVE_SCRIPT, *arguments, cwd=hostile) as server:
        server.wait_ready()
        assert imported_in(hostile) == []
        report = tmp_path / "report.json"
        subprocess.run(
            [LOADGEN_SCRIPT, *load, *sizes, "--url", server.url, "--json", str(report)],
            cwd=hostile,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )
        with control_of(server, timeout_s=60.0) as control:
            server.wait_until(
                lambda: (control.call(control_call.GET_DAY_NIGHT).job.step or 0) > 0,
                "a training step",
            )
        server.look()
        assert server.runs("child_launcher", "serving.main train")

    assert imported_in(hostile) == []
    assert json.loads(report.read_text())["completed_requests"] == 6


def test_the_demo_imports_nothing_of_them(hostile: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    demo = ("demo", "--chips", "1", "--requests", "4", "--clock", "dilated:5")
    subprocess.run(
        [*ULTRASERVE_SCRIPT, *demo, "--report", str(report)],
        cwd=hostile,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )

    assert imported_in(hostile) == []
    assert json.loads(report.read_text())["completed_requests"] == 4
