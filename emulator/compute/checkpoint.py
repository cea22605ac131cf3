"""Reads one chip's shard of a Hugging Face Qwen3-MoE checkpoint: attention replica and experts.

A chip never reads another chip's experts. Names and shapes are checked against the architecture,
so that a missing or misshapen tensor is one clear line before anything is served.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors asks for by name
import numpy as np
from safetensors import SafetensorError, safe_open

from emulator.compute.architecture import Architecture, read_architecture
from emulator.compute.attention import scores_are_bounded
from emulator.compute.tiled_matmul import F32
from emulator.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer on one chip; matrices are [inputs, outputs], float32."""

    input_norm: F32  # [hidden]
    qkv: F32  # [hidden, (heads + 2 * kv_heads) * head_dim]
    head_norms: F32  # [heads + kv_heads, head_dim], the queries' norm, then the keys'
    scores_bounded: bool  # see attention.scores_are_bounded
    output: F32  # [heads * head_dim, hidden]
    post_norm: F32  # [hidden]
    router: F32  # [hidden, experts]
    gate_up: F32  # [local_experts, hidden, 2 * expert_intermediate]
    down: F32  # [local_experts, expert_intermediate, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShard:
    """What one chip holds of a model. `experts` are the global ids of its local experts."""

    architecture: Architecture
    experts: tuple[int, ...]
    embedding: F32  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: F32  # [hidden]
    lm_head: F32  # [hidden, vocab]


class _Tensors:
    """The safetensors files of a directory, opened once, read by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, Any] = {}
        self._file_of = _index(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._files.values():
            handle.__exit__(kind, error, trace)

    def check(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return the lazily opened tensor `name` after checking that its shape is `shape`."""
        path = self._file_of.get(name)
        if path is None:
            raise CheckpointError(f"{self._directory}: tensor {name} is missing")
        try:
            if path not in self._files:
                opened: Any = safe_open(path, framework="np")
                self._files[path] = opened.__enter__()
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

    def read(self, name: str, *shape: int) -> F32:
        """Return tensor `name` as float32."""
        lazy = self.check(name, shape)
        return np.asarray(lazy[:], dtype=np.float32)

    def matrix(self, name: str, outputs: int, inputs: int) -> F32:
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
    """Read the architecture of `directory` and check that every tensor is there with its shape.

    No tensor is read. Returns the architecture.

    Raises:
        CheckpointError: another architecture, or names the first tensor missing or misshapen.
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


def load_shard(directory: Path, arch: Architecture, experts: Sequence[int]) -> ModelShard:
    """Read the attention replica and the given global `experts` from `directory`.

    Raises:
        CheckpointError: a tensor is missing or misshapen.
    """
    with _Tensors(directory) as tensors:
        embedding = tensors.read("model.embed_tokens.weight", arch.vocab, arch.hidden)
        if arch.tied_embeddings:
            lm_head = embedding.T
        else:
            lm_head = tensors.matrix("lm_head.weight", arch.vocab, arch.hidden)
        return ModelShard(
            architecture=arch,
            experts=tuple(experts),
            embedding=embedding,
            layers=tuple(_load_layer(tensors, n, arch, experts) for n in range(arch.layers)),
            final_norm=tensors.read("model.norm.weight", arch.hidden),
            lm_head=np.ascontiguousarray(lm_head),
        )


def _load_layer(
    tensors: _Tensors, layer: int, arch: Architecture, experts: Sequence[int]
) -> LayerWeights:
    shapes = _attention_shapes(layer, arch)
    arrays = [tensors.read(name, *shape) for name, shape in shapes.items()]
    input_norm, query, key, value, query_norm, key_norm, output, post_norm, router = arrays
    wide = 2 * arch.expert_intermediate
    gate_up = np.empty((len(experts), arch.hidden, wide), dtype=np.float32)
    down = np.empty((len(experts), arch.expert_intermediate, arch.hidden), dtype=np.float32)
    for local, expert in enumerate(experts):
        gate, up, back = (tensors.matrix(*name) for name in _expert_names(layer, expert, arch))
        gate_up[local, :, : arch.expert_intermediate] = gate
        gate_up[local, :, arch.expert_intermediate :] = up
        down[local] = back
    return LayerWeights(
        input_norm=input_norm,
        qkv=np.ascontiguousarray(np.concatenate([query, key, value]).T),
        head_norms=np.repeat([query_norm, key_norm], [arch.heads, arch.kv_heads], axis=0),
        scores_bounded=scores_are_bounded(query_norm, key_norm),
        output=np.ascontiguousarray(output.T),
        post_norm=post_norm,
        router=np.ascontiguousarray(router.T),
        gate_up=gate_up,
        down=down,
    )
