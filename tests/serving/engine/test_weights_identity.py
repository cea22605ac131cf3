"""Which checkpoints may take the place of what is served, and how their weights are told apart."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from serving.engine.weights_identity import check_successor, weights_hash
from tests.serving.plugin.other_weights import other_weights, write_manifest


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return other_weights(tmp_path / "other", seed=1)


@pytest.mark.long
def test_a_hash_is_of_the_weights_alone(other: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(other, copy)
    (copy / "optimizer.safetensors").write_bytes(b"a job's own")
    (copy / "README").write_text("the same weights")

    assert weights_hash(copy) == weights_hash(other) != weights_hash(SMALL_MOE_DIR)
    assert len(weights_hash(other)) == 8


def test_the_hash_of_a_checkpoint_in_shards_sees_each_of_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
    table = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(table))
    before = weights_hash(tmp_path)
    (tmp_path / "two.safetensors").write_bytes(b"owt")
    assert weights_hash(tmp_path) != before


@pytest.mark.long
def test_the_hash_of_a_large_file_sees_its_begin_its_end_and_its_length(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    size = 70 << 20  # more than is read of one file

    def written(**bytes_at: int) -> str:
        with path.open("wb") as file:
            file.truncate(size + bytes_at.get("longer", 0))
            for name, at in (("first", 0), ("last", size - 1)):
                if name in bytes_at:
                    file.seek(at)
                    file.write(b"x")
        return weights_hash(tmp_path)

    hashes = [written(), written(first=1), written(last=1), written(longer=1)]
    assert len(set(hashes)) == 4


@pytest.mark.long
def test_weights_of_the_same_architecture_and_tokenizer_may_succeed(other: Path) -> None:
    check_successor(other, SMALL_MOE_DIR)
    write_manifest(other)
    check_successor(other, SMALL_MOE_DIR)
    (other / "manifest.json").unlink()
    (other / "tokenizer.json").unlink()  # a job may keep none
    check_successor(other, SMALL_MOE_DIR)


def _another_architecture(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 7.0}))


def _a_tensor_less(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)


def _another_tokenizer(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "2.0"}))


def _a_flipped_bit(directory: Path) -> None:
    write_manifest(directory)
    path = directory / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def _a_missing_file(directory: Path) -> None:
    write_manifest(directory)
    (directory / "generation_config.json").unlink()


def _a_path_outside(directory: Path) -> None:
    (directory / "manifest.json").write_text(json.dumps({"sha256": {"../x": "0"}}))


def _no_table(directory: Path) -> None:
    (directory / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            _another_architecture,
            "not the served architecture: rope theta=7, scaling=None instead of theta=1e+06",
        ),
        (_a_tensor_less, "tensor model.norm.weight is missing"),
        (_another_tokenizer, "another tokenizer than the served one"),
        (_a_flipped_bit, "model.safetensors: its hash is not the one that manifest.json gives"),
        (_a_missing_file, "generation_config.json: cannot be read"),
        (_a_path_outside, "../x lies outside the checkpoint"),
        (_no_table, "no table of files"),
        (shutil.rmtree, "there is no such directory"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(other: Path, spoil, words: str) -> None:  # type: ignore[no-untyped-def]
    spoil(other)
    with pytest.raises(CheckpointError) as refusal:
        check_successor(other, SMALL_MOE_DIR)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
