import shutil
from pathlib import Path

import numpy as np
import pytest

from emulator.compute.checkpoint import check_weights
from emulator.data import SMALL_MOE_DIR
from emulator.data.bfloat16_checkpoint import safetensors_bytes
from emulator.errors import CheckpointError
from serving.server.training.fresh_weights import fresh_tensors


@pytest.mark.long
def test_fresh_weights_are_a_whole_checkpoint_of_the_architecture(tmp_path: Path) -> None:
    tensors = fresh_tensors(SMALL_MOE_DIR, seed=1)
    shutil.copy(SMALL_MOE_DIR / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))

    assert check_weights(tmp_path) == check_weights(SMALL_MOE_DIR)
    whole = (SMALL_MOE_DIR / "model.safetensors").stat().st_size
    assert (tmp_path / "model.safetensors").stat().st_size == whole


def test_a_matrix_keeps_the_size_of_what_it_reads() -> None:
    tensors = fresh_tensors(SMALL_MOE_DIR, seed=1)
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    output = tensors["model.layers.0.self_attn.o_proj.weight"]

    assert query.std() == pytest.approx(112**-0.5, rel=0.02)
    assert output.std() == pytest.approx((128 * 8) ** -0.5, rel=0.02)  # 4 layers write twice each
    assert (tensors["model.layers.2.input_layernorm.weight"] == 1).all()


@pytest.mark.long
def test_a_tensor_follows_from_its_name_and_the_seed() -> None:
    first, again, other = (fresh_tensors(SMALL_MOE_DIR, seed=seed) for seed in (1, 1, 2))

    name = "model.layers.1.mlp.experts.7.up_proj.weight"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first[name], first[name.replace("experts.7", "experts.8")])


@pytest.mark.parametrize("config", [None, "{", "{}"])
def test_a_directory_without_sizes_is_refused_in_one_line(
    tmp_path: Path, config: str | None
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config, encoding="utf-8")

    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read for fresh weights"):
        fresh_tensors(tmp_path, seed=0)
