"""Reads one chip's heads and experts from a Hugging Face Qwen3-MoE checkpoint.

A missing or misshapen tensor is one clear line before serving starts.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors asks for by name
import numpy as np
from safetensors import SafetensorError, safe_open

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture, read_architecture
from emulator.compute.attention import scores_are_bounded
from emulator.compute.rope import attention_factor
from emulator.errors import CheckpointError
from emulator.specs.placement import EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer on one chip; matrices are [inputs, outputs], float32.

    A head group is a key/value head with its query heads; `groups` are this chip's. Experts are
    overwritten when they move.
    """

    input_norm: Float32s  # [hidden]
    qkv: Float32s  # [groups, hidden, (group_heads + 2) * head_dim]: queries, key, value
    head_norms: Float32s  # [group_heads + 1, head_dim], the queries' norm, then the key's
    scores_bounded: bool  # see attention.scores_are_bounded
    output: Float32s  # [groups, group_heads * head_dim, hidden]
    post_norm: Float32s  # [hidden]
    router: Float32s  # [hidden, experts]
    gate_up: Float32s  # [slots, hidden, 2 * expert_intermediate]
    down: Float32s  # [slots, expert_intermediate, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShard:
    """One chip's part of a model; `groups` counts its head groups."""

    architecture: Architecture
    groups: int
    embedding: Float32s  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Float32s  # [hidden]
    lm_head: Float32s  # [hidden, vocab]


class _Tensors(ExitStack):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._files: dict[Path, Any] = {}
        self._file_of = _index(directory)

    def check(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return the lazily opened tensor `name` after checking its shape."""
        path = self._file_of.get(name)
        if path is None:
            raise CheckpointError(f"{self._directory}: tensor {name} is missing")
        try:
            if path not in self._files:
                self._files[path] = self.enter_context(safe_open(path, framework="np"))
            lazy = self._files[path].get_slice(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from error
        found = tuple(lazy.get_shape())
        if found != shape:
            raise CheckpointError(
                f"{path.name}: tensor {name} has shape {list(found)}, "
                f"config.json asks {list(shape)}"
            )
        return lazy

    def read(self, name: str, *shape: int) -> Float32s:
        lazy = self.check(name, shape)
        return np.asarray(lazy[:], dtype=np.float32)

    def matrix(self, name: str, outputs: int, inputs: int) -> Float32s:
        """Return a linear layer, stored [outputs, inputs], as [inputs, outputs]."""
        return self.read(name, outputs, inputs).T


def _index(directory: Path) -> dict[str, Path]:
    index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    indexed = index.exists()
    if not indexed and not single.exists():
        raise CheckpointError(f"{directory}: no model.safetensors and no index of shards")
    try:
        if indexed:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: directory / file for name, file in names.items()}
        with safe_open(single, framework="np") as handle:
            return dict.fromkeys(handle.keys(), single)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        path = index if indexed else single
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def _expert_names(layer: int, expert: int, arch: Architecture) -> Iterator[tuple[str, int, int]]:
    prefix = f"model.layers.{layer}.mlp.experts.{expert}"
    yield f"{prefix}.gate_proj.weight", arch.expert_intermediate, arch.hidden
    yield f"{prefix}.up_proj.weight", arch.expert_intermediate, arch.hidden
    yield f"{prefix}.down_proj.weight", arch.hidden, arch.expert_intermediate


def check_weights(directory: Path) -> Architecture:
    """Check the shapes of all tensors in `directory`, unread; returns the architecture.

    Raises CheckpointError for another architecture, or the first missing or misshapen tensor.
    """
    arch = read_architecture(directory)
    with _Tensors(directory) as tensors:
        for layer in range(arch.layers):
            for name, shape in _attention_shapes(layer, arch).items():
                tensors.check(name, shape)
            for expert in range(arch.experts):
                for name, outputs, inputs in _expert_names(layer, expert, arch):
                    tensors.check(name, (outputs, inputs))
        tensors.check("model.embed_tokens.weight", (arch.vocab, arch.hidden))
        tensors.check("model.norm.weight", (arch.hidden,))
        if not arch.tied_embeddings:
            tensors.check("lm_head.weight", (arch.vocab, arch.hidden))
    return arch


def _attention_shapes(layer: int, arch: Architecture) -> dict[str, tuple[int, ...]]:
    prefix = f"model.layers.{layer}"
    query, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    return {
        f"{prefix}.input_layernorm.weight": (arch.hidden,),
        f"{prefix}.self_attn.q_proj.weight": (query, arch.hidden),
        f"{prefix}.self_attn.k_proj.weight": (kv, arch.hidden),
        f"{prefix}.self_attn.v_proj.weight": (kv, arch.hidden),
        f"{prefix}.self_attn.q_norm.weight": (arch.head_dim,),
        f"{prefix}.self_attn.k_norm.weight": (arch.head_dim,),
        f"{prefix}.self_attn.o_proj.weight": (arch.hidden, query),
        f"{prefix}.post_attention_layernorm.weight": (arch.hidden,),
        f"{prefix}.mlp.gate.weight": (arch.experts, arch.hidden),
    }


def load_shard(
    directory: Path,
    arch: Architecture,
    experts: Sequence[Sequence[int]],
    *,
    tp: int = 1,
    tp_index: int = 0,
) -> ModelShard:
    """Read one chip's share of the heads, and its experts, from `directory`.

    `experts` gives each layer's slots, equally many, an expert or EMPTY. Of the `tp` chips that
    divide a rank's head groups it is `tp_index`; from `tp` on, it has no heads. Raises
    CheckpointError for a missing or misshapen tensor.
    """
    groups = arch.kv_heads // tp if tp_index < tp else 0
    assert tp_index >= tp or groups * tp == arch.kv_heads, (arch.kv_heads, tp)
    share = slice(tp_index * groups, (tp_index + 1) * groups)
    with _Tensors(directory) as tensors:
        embedding = tensors.read("model.embed_tokens.weight", arch.vocab, arch.hidden)
        if arch.tied_embeddings:
            lm_head = embedding.T
        else:
            lm_head = tensors.matrix("lm_head.weight", arch.vocab, arch.hidden)
        return ModelShard(
            architecture=arch,
            groups=groups,
            embedding=embedding,
            layers=tuple(
                _load_layer(tensors, layer, arch, slots, share)
                for layer, slots in enumerate(experts)
            ),
            final_norm=tensors.read("model.norm.weight", arch.hidden),
            lm_head=np.ascontiguousarray(lm_head),
        )


def _load_layer(
    tensors: _Tensors, layer: int, arch: Architecture, slots: Sequence[int], share: slice
) -> LayerWeights:
    shapes = _attention_shapes(layer, arch)
    arrays = [tensors.read(name, *shape) for name, shape in shapes.items()]
    input_norm, query, key, value, query_norm, key_norm, output, post_norm, router = arrays
    gate_up, down = _empty_slots(arch, len(slots))
    for slot, expert in enumerate(slots):
        if expert != EMPTY:
            gate_up[slot], down[slot] = _load_expert(tensors, layer, expert, arch)
    by_group = [rows.reshape(arch.kv_heads, -1, arch.hidden) for rows in (query, key, value)]
    group_heads = arch.heads // arch.kv_heads
    output_groups = output.T.reshape(arch.kv_heads, -1, arch.hidden)
    return LayerWeights(
        input_norm=input_norm,
        qkv=np.ascontiguousarray(np.concatenate(by_group, axis=1)[share].transpose(0, 2, 1)),
        head_norms=np.repeat([query_norm, key_norm], [group_heads, 1], axis=0),
        scores_bounded=scores_are_bounded(
            query_norm, key_norm, rotation_gain=attention_factor(arch.rope.scaling)
        ),
        output=np.ascontiguousarray(output_groups[share]),
        post_norm=post_norm,
        router=np.ascontiguousarray(router.T),
        gate_up=gate_up,
        down=down,
    )


def _empty_slots(arch: Architecture, slots: int) -> tuple[Float32s, Float32s]:
    """Zeros for `slots` experts, which take host memory only once written."""
    wide = 2 * arch.expert_intermediate
    gate_up = np.zeros((slots, arch.hidden, wide), dtype=np.float32)
    return gate_up, np.zeros((slots, arch.expert_intermediate, arch.hidden), dtype=np.float32)


def _load_expert(
    tensors: _Tensors, layer: int, expert: int, arch: Architecture
) -> tuple[Float32s, Float32s]:
    gate, up, back = (tensors.matrix(*name) for name in _expert_names(layer, expert, arch))
    return np.concatenate([gate, up], axis=1), back


def load_experts(
    directory: Path, arch: Architecture, layer: int, experts: Sequence[int]
) -> tuple[Float32s, Float32s]:
    """Read `experts` of one layer that no chip holds any more; raises CheckpointError.

    Returns gate_up [experts, hidden, 2 * intermediate] and down [experts, intermediate, hidden].
    """
    gate_up, down = _empty_slots(arch, len(experts))
    with _Tensors(directory) as tensors:
        for slot, expert in enumerate(experts):
            gate_up[slot], down[slot] = _load_expert(tensors, layer, expert, arch)
    return gate_up, down
