"""What is read of a checkpoint, and the one line that each broken one gets."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import (
    check_weights,
    load_experts,
    load_shard,
    read_architecture,
)
from emulator.compute.weights import (
    ExpertSet,
    GroupedQueryWeights,
    LayerWeights,
    ModelShard,
    MoeWeights,
)
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.specs.placement import EMPTY
from tests.emulator.chip.random_checkpoints import SHAPES, make_checkpoint

Tensors = dict[str, np.ndarray]

EXPERT = "model.layers.1.mlp.experts.5.up_proj.weight"


@pytest.fixture
def broken(small_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    """A copy of a checkpoint, for a test to break."""
    return Path(shutil.copytree(small_checkpoints["wide_heads"], tmp_path / "broken"))


def rewrite(directory: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def remove(directory: Path, name: str) -> None:
    rewrite(directory, lambda tensors: tensors.__delitem__(name))


def whole_shard(directory: Path, arch: Architecture) -> ModelShard:
    return load_shard(directory, arch, [range(arch.experts)] * arch.layers)


def grouped(layer: LayerWeights) -> GroupedQueryWeights:
    assert isinstance(layer.attention, GroupedQueryWeights)
    return layer.attention


def moe(layer: LayerWeights) -> MoeWeights:
    assert isinstance(layer.feed_forward, MoeWeights)
    return layer.feed_forward


def experts(layer: LayerWeights) -> ExpertSet:
    return moe(layer).experts


def one_expert(directory: Path) -> ModelShard:
    arch = check_weights(directory)
    return load_shard(directory, arch, [[0]] * arch.layers)


def refusals(directory: Path) -> list[str]:
    """The line that each of both ways into a checkpoint answers with."""
    lines = []
    for read in (
        check_weights,
        lambda path: whole_shard(path, read_architecture(path)),
    ):
        with pytest.raises(CheckpointError) as caught:
            read(directory)
        lines.append(str(caught.value))
    assert not any("\n" in line for line in lines)
    return lines


def refusal(directory: Path) -> str:
    """The one line that both answer with."""
    (line,) = set(refusals(directory))
    return line


class TestShard:
    def test_it_holds_the_attention_replica_and_the_asked_experts_transposed(
        self, small_checkpoints: Mapping[str, Path]
    ) -> None:
        directory = small_checkpoints["wide_heads"]
        arch = check_weights(directory)
        tensors = load_file(directory / "model.safetensors")

        shard = load_shard(directory, arch, [[3, 7]] * 3)

        assert shard.architecture == arch == read_architecture(directory)
        assert shard.groups == 2
        assert (shard.embedding == tensors["model.embed_tokens.weight"]).all()
        assert (shard.lm_head == tensors["lm_head.weight"].T).all()
        assert (shard.final_norm == tensors["model.norm.weight"]).all()
        assert len(shard.layers) == 3
        for number, layer in enumerate(shard.layers):
            prefix = f"model.layers.{number}"
            attention = f"{prefix}.self_attn"
            query = tensors[f"{attention}.q_proj.weight"]
            key, value = (tensors[f"{attention}.{name}_proj.weight"] for name in "kv")
            for group in range(2):  # two query heads and one key/value head of 32 each
                heads, head = slice(64 * group, 64 * group + 64), slice(32 * group, 32 * group + 32)
                expected = np.concatenate([query[heads], key[head], value[head]]).T
                assert (grouped(layer).qkv[group] == expected).all()
                output = tensors[f"{attention}.o_proj.weight"][:, heads]
                assert (grouped(layer).output[group] == output.T).all()
            assert grouped(layer).qkv.shape[0] == grouped(layer).output.shape[0] == 2
            norms = [tensors[f"{attention}.{name}_norm.weight"] for name in "qk"]
            assert (grouped(layer).head_norms == [norms[0], norms[0], norms[1]]).all()
            assert (layer.input_norm == tensors[f"{prefix}.input_layernorm.weight"]).all()
            assert (layer.post_norm == tensors[f"{prefix}.post_attention_layernorm.weight"]).all()
            assert (moe(layer).router.matrix == tensors[f"{prefix}.mlp.gate.weight"].T).all()
            assert len(experts(layer).gate_up) == len(experts(layer).down) == 2
            for local, expert in enumerate((3, 7)):
                mlp = f"{prefix}.mlp.experts.{expert}"
                gate, up = np.split(experts(layer).gate_up[local], 2, axis=1)
                assert (gate == tensors[f"{mlp}.gate_proj.weight"].T).all()
                assert (up == tensors[f"{mlp}.up_proj.weight"].T).all()
                assert (experts(layer).down[local] == tensors[f"{mlp}.down_proj.weight"].T).all()

    def test_another_chips_experts_are_not_read(self, broken: Path) -> None:
        remove(broken, EXPERT)
        arch = read_architecture(broken)

        load_shard(broken, arch, [[0, 1, 2, 3, 4, 6]] * arch.layers)
        with pytest.raises(CheckpointError, match=EXPERT):
            load_shard(broken, arch, [[4, 5]] * arch.layers)

    def test_layers_may_hold_other_experts_and_slots_may_be_empty(
        self, small_checkpoints: Mapping[str, Path]
    ) -> None:
        directory = small_checkpoints["wide_heads"]
        arch = check_weights(directory)
        whole = whole_shard(directory, arch)

        shard = load_shard(directory, arch, [[3, EMPTY], [EMPTY, 3], [5, 5]])

        first, second, third = shard.layers
        assert (experts(first).gate_up[0] == experts(whole.layers[0]).gate_up[3]).all()
        assert not experts(first).gate_up[1].any()
        assert not experts(first).down[1].any()
        assert (experts(second).down[1] == experts(whole.layers[1]).down[3]).all()
        assert (experts(third).down == experts(whole.layers[2]).down[[5, 5]]).all()

    def test_chips_of_a_rank_divide_its_head_groups(
        self, small_checkpoints: Mapping[str, Path]
    ) -> None:
        directory = small_checkpoints["wide_heads"]
        arch = check_weights(directory)
        whole = whole_shard(directory, arch)

        for index in range(2):
            part = load_shard(directory, arch, [[0]] * 3, tp=2, tp_index=index)
            assert part.groups == 1
            for mine, all_groups in zip(part.layers, whole.layers, strict=True):
                assert (grouped(mine).qkv == grouped(all_groups).qkv[index : index + 1]).all()
                assert (grouped(mine).output == grouped(all_groups).output[index : index + 1]).all()

    def test_experts_are_read_alone_as_they_are_read_in_a_shard(
        self, small_checkpoints: Mapping[str, Path]
    ) -> None:
        directory = small_checkpoints["wide_heads"]
        arch = check_weights(directory)
        whole = whole_shard(directory, arch)

        read = load_experts(directory, arch, 1, [7, 2])

        assert (read.gate_up == experts(whole.layers[1]).gate_up[[7, 2]]).all()
        assert (read.down == experts(whole.layers[1]).down[[7, 2]]).all()

    def test_tied_embeddings_are_the_lm_head(self, small_checkpoints: Mapping[str, Path]) -> None:
        directory = small_checkpoints["tied"]
        assert "lm_head.weight" not in load_file(directory / "model.safetensors")

        shard = one_expert(directory)

        assert (shard.lm_head == shard.embedding.T).all()

    def test_bf16_tensors_are_widened_without_a_change(self) -> None:
        shard = one_expert(SMALL_MOE_DIR)

        assert shard.embedding.dtype == experts(shard.layers[0]).gate_up.dtype == np.float32
        assert (shard.embedding.view(np.uint32) & 0xFFFF == 0).all()
        assert (shard.embedding[:, 0] == 1.0).all()

    def test_a_checkpoint_in_several_files_is_the_same(
        self, small_checkpoints: Mapping[str, Path], tmp_path: Path
    ) -> None:
        seed = list(SHAPES).index("wide_heads")
        make_checkpoint(tmp_path / "sharded", SHAPES["wide_heads"], seed=seed, shard_bytes=200_000)
        assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2

        one, several = (
            whole_shard(path, check_weights(path))
            for path in (small_checkpoints["wide_heads"], tmp_path / "sharded")
        )

        assert (one.embedding == several.embedding).all()
        for layer, other in zip(one.layers, several.layers, strict=True):
            assert (grouped(layer).qkv == grouped(other).qkv).all()
            assert (experts(layer).gate_up == experts(other).gate_up).all()


class TestRefusals:
    @pytest.mark.parametrize(
        "name",
        [
            "model.embed_tokens.weight",
            "model.norm.weight",
            "lm_head.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.2.self_attn.k_norm.weight",
            "model.layers.1.mlp.gate.weight",
            EXPERT,
        ],
    )
    def test_a_missing_tensor_is_named(self, broken: Path, name: str) -> None:
        remove(broken, name)

        assert refusal(broken) == f"{broken}: tensor {name} is missing"

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("model.embed_tokens.weight", "[201, 40]"),
            ("model.norm.weight", "[40]"),
            ("lm_head.weight", "[201, 40]"),
            ("model.layers.0.self_attn.q_proj.weight", "[128, 40]"),
            ("model.layers.0.self_attn.k_proj.weight", "[64, 40]"),
            ("model.layers.0.self_attn.v_proj.weight", "[64, 40]"),
            ("model.layers.0.self_attn.o_proj.weight", "[40, 128]"),
            ("model.layers.0.self_attn.q_norm.weight", "[32]"),
            ("model.layers.1.mlp.gate.weight", "[16, 40]"),
            ("model.layers.1.mlp.experts.5.gate_proj.weight", "[24, 40]"),
            (EXPERT, "[24, 40]"),
            ("model.layers.1.mlp.experts.5.down_proj.weight", "[40, 24]"),
        ],
    )
    def test_a_tensor_of_another_shape_is_named_with_both(
        self, broken: Path, name: str, shape: str
    ) -> None:
        def cut(tensors: Tensors) -> None:
            tensors[name] = tensors[name][:-1].copy()

        rewrite(broken, cut)

        line = refusal(broken)
        assert line.startswith(f"model.safetensors: tensor {name} has shape [")
        assert line.endswith(f"config.json asks {shape}")

    def test_a_transposed_tensor_is_refused_though_its_size_is_right(self, broken: Path) -> None:
        def transpose(tensors: Tensors) -> None:
            tensors[EXPERT] = np.ascontiguousarray(tensors[EXPERT].T)

        for _ in range(2):
            rewrite(broken, transpose)
        path = broken / "model.safetensors"
        before = path.stat()
        assert check_weights(broken).layers == 3

        rewrite(broken, transpose)  # a check is of a file as it is, not of its name, size and time
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        assert "has shape [40, 24], config.json asks [24, 40]" in refusal(broken)

        rewrite(broken, transpose)
        assert check_weights(broken).layers == 3

    @pytest.mark.parametrize("kept_share", [0.0, 1e-5, 0.01, 0.5, 0.999])
    def test_a_truncated_file_is_named(self, broken: Path, kept_share: float) -> None:
        path = broken / "model.safetensors"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept_share)])

        assert "model.safetensors" in refusal(broken)

    def test_a_directory_without_tensors_is_named(self, broken: Path) -> None:
        (broken / "model.safetensors").unlink()

        assert refusal(broken) == f"{broken}: no model.safetensors and no index of shards"

    def test_another_architecture_is_refused_before_its_tensors(self, broken: Path) -> None:
        config = json.loads((broken / "config.json").read_text())
        config["architectures"] = ["Gemma3ForCausalLM"]
        (broken / "config.json").write_text(json.dumps(config))
        (broken / "model.safetensors").unlink()

        assert "architectures=Gemma3ForCausalLM" in refusal(broken)

    def test_what_modelopt_writes_beside_is_read(self, broken: Path) -> None:
        beside = broken / "hf_quant_config.json"
        beside.write_text(json.dumps({"quantization": {"quant_algo": None, "kv_cache": "FP8"}}))
        read_architecture(broken)

        beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}))
        with pytest.raises(CheckpointError, match=r"quantization_config: NVFP4 has an E4M3 scale"):
            read_architecture(broken)

    def test_an_unknown_directory_is_named(self, tmp_path: Path) -> None:
        assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


class TestIndex:
    @pytest.fixture
    def sharded(self, broken: Path) -> Path:
        """Layer 1 in a file of its own, and an index."""
        tensors = load_file(broken / "model.safetensors")
        (broken / "model.safetensors").unlink()
        parts: dict[str, Tensors] = {"a.safetensors": {}, "b.safetensors": {}}
        for name, tensor in tensors.items():
            parts["b.safetensors" if ".layers.1." in name else "a.safetensors"][name] = tensor
        for file, part in parts.items():
            save_file(part, broken / file)
        where = {name: file for file, part in parts.items() for name in part}
        self.write_index(broken, json.dumps({"metadata": {}, "weight_map": where}))
        return broken

    @staticmethod
    def write_index(directory: Path, text: str) -> None:
        (directory / "model.safetensors.index.json").write_text(text)

    def test_a_good_one_is_followed(self, sharded: Path) -> None:
        assert check_weights(sharded).layers == 3

        (sharded / "model.safetensors").write_bytes(b"left over from another download")
        assert check_weights(sharded).layers == 3

    def test_a_missing_file_is_named(self, sharded: Path) -> None:
        (sharded / "b.safetensors").unlink()

        assert all(f"{sharded}/b.safetensors" in line for line in refusals(sharded))

    def test_a_truncated_file_is_named(self, sharded: Path) -> None:
        path = sharded / "b.safetensors"
        path.write_bytes(path.read_bytes()[:-100])

        assert "b.safetensors" in refusal(sharded)

    def test_a_tensor_that_its_file_does_not_hold_is_named_with_the_file(
        self, sharded: Path
    ) -> None:
        index = json.loads((sharded / "model.safetensors.index.json").read_text())
        index["weight_map"][EXPERT] = "a.safetensors"
        self.write_index(sharded, json.dumps(index))

        line = refusal(sharded)
        assert EXPERT in line
        assert "a.safetensors" in line

    def test_a_tensor_that_the_index_does_not_list_is_missing(self, sharded: Path) -> None:
        index = json.loads((sharded / "model.safetensors.index.json").read_text())
        del index["weight_map"][EXPERT]
        self.write_index(sharded, json.dumps(index))

        assert refusal(sharded) == f"{sharded}: tensor {EXPERT} is missing"

    @pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": ["a"]}'])
    def test_one_that_is_no_index_is_one_line(self, sharded: Path, text: str) -> None:
        self.write_index(sharded, text)

        assert str(sharded) in refusal(sharded)
