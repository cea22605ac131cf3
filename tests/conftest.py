"""What rooms share: checkpoints, property tests without a stopwatch."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.emulator.chip.random_checkpoints import SHAPES, RandomCheckpoints

# As in a chip's process, and before numpy is imported: one thread, and no waiting for a second
# one that another program keeps from running.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# How long an example takes says more about the machine than about the code. An example that
# failed is printed with what it takes to repeat it. Where CI is set Hypothesis draws the same ones
# every time, so that a change is judged by itself; elsewhere it draws new ones.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def small_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Directories of random Qwen3-MoE checkpoints by the names in `SHAPES`, made when asked for."""
    return RandomCheckpoints(tmp_path_factory.mktemp("checkpoints"), SHAPES)
