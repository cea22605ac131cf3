"""What cannot work ends at once: one line that names it, a code that is not 0, nothing left."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16, the type of the bundled weights
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from emulator.data import SMALL_MOE_DIR
from tests.e2e.server_process import ULTRASERVE, ServerProcess, free_port


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command that should not start anything has ended."""

    code: int
    log: str
    left: list[str]


def serve(*arguments: str, port: int | None = None) -> Ended:
    chosen = free_port() if port is None else port
    command = (*ULTRASERVE, "serve", *arguments, "--port", str(chosen))
    with ServerProcess(*command, port=chosen) as server:
        code = server.wait_end()
        left = [] if port is not None else server.left_over()
        return Ended(code=code, log=server.log(), left=left)


def one_line(ended: Ended) -> str:
    """The one line that was told, without the name of the command."""
    assert ended.code == 2, ended.log
    assert ended.left == []
    (line,) = ended.log.splitlines()
    name, _, text = line.partition(": ")
    assert name == "ultraserve serve"
    return text


def changed_config(directory: Path, **changes: Any) -> Path:
    """A copy of the bundled MoE with another config.json."""
    shutil.copytree(SMALL_MOE_DIR, directory, dirs_exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def changed_weights(directory: Path, **changes: np.ndarray | None) -> Path:
    """A copy of the bundled MoE with tensors replaced, or left out for None."""
    shutil.copytree(SMALL_MOE_DIR, directory, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, directory / "model.safetensors")
    return directory


def test_a_setting_that_cannot_be_is_told_and_leaves_nothing() -> None:
    text = one_line(serve("--clock", "virtual"))

    assert text.startswith("clock=virtual: expected real, auto or dilated:K")


def test_a_model_that_does_not_fit_is_told_with_the_usage_table_and_what_would() -> None:
    ended = serve("--model", "deepseek-v3", "--chips", "4")
    first, *table, last = ended.log.splitlines()

    assert (ended.code, ended.left) == (2, [])
    assert first.startswith("ultraserve serve: HBM exhausted: weights/experts of deepseek-v3 wants")
    assert any("Displaying Current Memory Utilization" in line for line in table)
    assert last.startswith("smallest that fits: --chips ")


def test_a_directory_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    text = one_line(serve("--model", str(tmp_path)))

    assert text.startswith(f"{tmp_path}: not a checkpoint directory")


def test_another_architecture_is_named(tmp_path: Path) -> None:
    directory = changed_config(
        tmp_path, architectures=["Gemma3ForCausalLM"], model_type="qwen3_moe"
    )

    assert "architectures=Gemma3ForCausalLM" in one_line(serve("--model", str(directory)))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    directory = changed_weights(tmp_path, **{name: None})

    assert one_line(serve(str(directory))) == f"{directory}: tensor {name} is missing"


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    name = "model.norm.weight"
    directory = changed_weights(tmp_path, **{name: np.zeros(7, dtype=np.float32)})

    text = one_line(serve(str(directory)))
    assert text.endswith(f"tensor {name} has shape [7], config.json asks [112]")


def test_weights_that_are_cut_off_are_named(tmp_path: Path) -> None:
    shutil.copytree(SMALL_MOE_DIR, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])

    assert str(tmp_path) in one_line(serve(str(tmp_path)))


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named_and_its_owner_is_left_alone(listening: int) -> None:
    text = one_line(serve(port=listening))

    assert text.startswith(f"port={listening}: expected a free port on 127.0.0.1")
    with socket.create_connection(("127.0.0.1", listening), timeout=5):
        pass


# Reading these takes vLLM, and so seconds; it says a few lines on stdout before it asks us.
OF_VLLM = [(["--pipeline-parallel-size", "2"], "--pipeline-parallel-size: layers are not split")]
OF_VLLM_SLOW = [
    (["--enable-lora"], "--enable-lora: LoRA adapters are not computed"),
    (["--block-size", "48"], "--block-size 48: expected a power of two up to 128"),
    (["--decode-context-parallel-size", "2"], "tp_size=1 must be divisible by dcp_size=2."),
]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [*OF_VLLM, *(pytest.param(*case, marks=pytest.mark.slow) for case in OF_VLLM_SLOW)],
)
def test_what_the_platform_refuses_inside_vllm_is_one_line_on_stderr_too(
    arguments: list[str], told: str
) -> None:
    ran = subprocess.run(
        [*ULTRASERVE, "serve", *arguments, "--port", str(free_port()), "--control-port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"ultraserve serve: {told}")
    assert "Traceback" not in ran.stdout
