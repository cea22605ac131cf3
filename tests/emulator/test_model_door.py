import subprocess
import sys

import pytest


@pytest.mark.process
def test_the_door_to_specs_and_cost_starts_neither_ray_nor_vllm() -> None:
    script = (
        "import sys, emulator.model;"
        "print([m for m in ('ray', 'vllm', 'torch', 'zmq') if m in sys.modules])"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"
