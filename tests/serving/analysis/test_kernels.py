"""An installation compiles all kernels, so that no command has to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.data import SMALL_MOE_DIR

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
COMMANDS = """
import json
import sys
from numba.core import event
from serving.main import main

for words in json.loads(sys.argv[1]):
    with event.install_recorder("numba:compile") as compiled:
        assert main(words) == 0, words
    functions = [each.data["dispatcher"].py_func for _, each in compiled.buffer]
    assert not functions, (words, functions)
"""
SMALL = ("--model", "qwen3-30b-a3b", "--chips", "4")
LOAD = ("--rate", "20", "--requests", "20", "--output", "9")
NIGHT = ("--replicas", "3", "--schedule", "00:00-06:00", "--day-length", "9s", "--lend-chips", "8")


@pytest.fixture(scope="module")
def kept() -> list[str]:
    """The files of which all is made that is kept now."""
    command = [sys.executable, "-m", "serving.analysis.kernels"]
    return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()


@pytest.mark.process
def test_the_files_that_kernels_are_made_of_are_listed(kept: list[str]) -> None:
    assert {Path(each).name for each in kept} >= {
        "compiled.py",
        "cost_kernel.py",
        "closed_loop_kernel.py",
        "layer_kernel.py",
        "prefill_throttle.py",
        "scheduler_kernel.py",
        "simulated_record.py",
        "step_run_kernel.py",
        "vectors.py",
    }
    assert all(Path(each).is_file() for each in kept)


@pytest.mark.process
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "commands",
    [
        (
            ("simulate", *SMALL, *LOAD),
            ("simulate", *SMALL, *LOAD, "--replicas", "2", "--router", "prefix-aware"),
            ("simulate", *SMALL, *LOAD, "--shared-prefix", "64x2", "--results", "{folder}/r.jsonl"),
            ("simulate", *SMALL, *LOAD, "--timeout", "9", "--speculative-tokens", "1"),
            ("simulate", *SMALL, *LOAD, *NIGHT),
            ("pareto", "--model", "qwen3-30b-a3b", "--chips", "4", "--systems", "trn3-nl72x2"),
        ),
        pytest.param(
            (("plan", "--model", "qwen3-30b-a3b", "--rate", "20", "--slo", "ttft=1s,tpot=30ms"),),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["simulate and pareto", "plan"],
)
def test_commands_compile_nothing_more(
    commands: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    words = [[each.format(folder=tmp_path) for each in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


CHIP = """
from pathlib import Path
import numpy as np
from numba.core import event
from emulator.compute.whole_model import WholeModel
from emulator.formats.model_formats import FP32_MODEL

with event.install_recorder("numba:compile") as compiled:
    (logits,) = WholeModel(Path("{model}"), FP32_MODEL).logits(np.arange(20)[None])
assert not compiled.buffer, [each.data["dispatcher"].py_func for _, each in compiled.buffer]
"""


@pytest.mark.process
@pytest.mark.usefixtures("kept")
def test_a_model_compiles_nothing_more() -> None:
    subprocess.run([sys.executable, "-c", CHIP.format(model=SMALL_MOE_DIR)], cwd=ROOT, check=True)
