"""What several rooms share: small checkpoints, and a property test without a stopwatch."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.emulator.chip.random_checkpoints import SHAPES, RandomCheckpoints

# How long an example takes says more about the machine than about the code. An example that
# failed is printed with what it takes to repeat it.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def small_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Directories of random Qwen3-MoE checkpoints by the names in `SHAPES`, made when asked for."""
    return RandomCheckpoints(tmp_path_factory.mktemp("checkpoints"), SHAPES)
