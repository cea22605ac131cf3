"""Parameters as named views of one flat vector: reduced, updated and saved in one piece.

Two layouts: the dense part (attention, norms, routers, embeddings), whole on every chip, and one
chip's experts. Matrices are [inputs, outputs], transposed from Hugging Face's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_weights, load_experts, load_shard
from emulator.compute.mapped_matrix import MappedMatrix
from emulator.compute.mixed_precision import Precision, round_to_bfloat16
from emulator.compute.weights import GroupedQueryWeights, MoeWeights
from emulator.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Place of a parameter in the flat vector, in values; `decays` under AdamW."""

    offset: int
    shape: tuple[int, ...]
    decays: bool

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parameters by name, in the order of the flat vector, without gaps."""

    architecture: Architecture
    slots: Mapping[str, Slot]

    def __post_init__(self) -> None:
        end = 0
        for name, slot in self.slots.items():
            assert slot.offset == end, (name, slot, end)
            end += slot.size

    @cached_property
    def size(self) -> int:
        """Number of values in the flat vector."""
        return sum(slot.size for slot in self.slots.values())

    @cached_property
    def decaying_runs(self) -> tuple[tuple[int, int, bool], ...]:
        """The flat vector cut where `decays` changes: (start, end, decays)."""
        runs: list[tuple[int, int, bool]] = []
        for slot in self.slots.values():
            end = slot.offset + slot.size
            if runs and runs[-1][2] == slot.decays:
                runs[-1] = (runs[-1][0], end, slot.decays)
            else:
                runs.append((slot.offset, end, slot.decays))
        return tuple(runs)


class Parameters:
    """A flat vector [layout.size] and its views by name; weights, gradients or moments.

    Writers to `flat` call `changed`, which renews the rounded copy for products.
    """

    def __init__(self, layout: Layout, flat: Float32s) -> None:
        assert flat.shape == (layout.size,), (flat.shape, layout.size)
        self.layout = layout
        self.flat = flat
        self._views = {
            name: flat[slot.offset : slot.offset + slot.size].reshape(slot.shape)
            for name, slot in layout.slots.items()
        }
        self._rounded: Parameters | None = None

    @classmethod
    def zeros(cls, layout: Layout) -> "Parameters":
        """Float32 zeros, to add gradients to."""
        return cls(layout, np.zeros(layout.size, dtype=np.float32))

    def __getitem__(self, name: str) -> Float32s:
        return self._views[name]

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def changed(self) -> None:
        """Drop the rounded copy, after a write to `flat` or a view."""
        self._rounded = None

    def operands(self, precision: Precision) -> "Parameters":
        """The weights for products: these, or their rounding to BF16.

        Norms too, as in published weights: training uses the weights that would be served.
        """
        if precision is Precision.FP32:
            return self
        if self._rounded is None:
            self._rounded = Parameters(self.layout, round_to_bfloat16(self.flat.copy()))
        return self._rounded


def _layout(arch: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    slots: dict[str, Slot] = {}
    offset = 0
    for name, shape in shapes.items():
        # Decay pulls matrices to zero; a norm's weight belongs near one, an embedding's row is
        # seen too seldom to hold against it.
        decays = not name.endswith("norm") and name != "embedding"
        slots[name] = Slot(offset=offset, shape=shape, decays=decays)
        offset += slots[name].size
    return Layout(architecture=arch, slots=MappingProxyType(slots))


def dense_layout(arch: Architecture) -> Layout:
    """The parameters that every chip holds whole."""
    heads_wide = arch.heads * arch.head_dim
    qkv_wide = (arch.heads + 2 * arch.kv_heads) * arch.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding": (arch.vocab, arch.hidden)}
    for layer in range(arch.layers):
        shapes |= {
            f"layers.{layer}.input_norm": (arch.hidden,),
            f"layers.{layer}.qkv": (arch.hidden, qkv_wide),
            f"layers.{layer}.query_norm": (arch.head_dim,),
            f"layers.{layer}.key_norm": (arch.head_dim,),
            f"layers.{layer}.output": (heads_wide, arch.hidden),
            f"layers.{layer}.post_norm": (arch.hidden,),
            f"layers.{layer}.router": (arch.hidden, arch.experts),
        }
    shapes["final_norm"] = (arch.hidden,)
    if not arch.tied_embeddings:
        shapes["lm_head"] = (arch.hidden, arch.vocab)
    return _layout(arch, shapes)


def expert_layout(arch: Architecture, experts_per_layer: Sequence[int]) -> Layout:
    """The experts of one chip: `experts_per_layer` counts them."""
    assert len(experts_per_layer) == arch.layers, (len(experts_per_layer), arch.layers)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, count in enumerate(experts_per_layer):
        wide = arch.expert_intermediate
        shapes[f"layers.{layer}.gate_up"] = (count, arch.hidden, 2 * wide)
        shapes[f"layers.{layer}.down"] = (count, wide, arch.hidden)
    return _layout(arch, shapes)


TRAINED = "Qwen3MoeForCausalLM"


def check_trainable(directory: Path) -> Architecture:
    """Check that the checkpoint in `directory` can be trained here; returns its architecture.

    Raises CheckpointError as `check_weights`, for another family, and for dense layers.
    """
    arch = check_weights(directory)
    if arch.family != TRAINED or arch.dense_layers:
        raise CheckpointError(
            f"{directory}: architectures={arch.family} with {len(arch.dense_layers)} dense layers:"
            f" only {TRAINED} with experts in every layer is trained here"
        )
    return arch


def read_dense(directory: Path, arch: Architecture) -> Parameters:
    """Read a checkpoint's dense parameters; CheckpointError for a missing or misshapen tensor."""
    shard = load_shard(directory, arch, [()] * arch.layers)
    dense = Parameters.zeros(dense_layout(arch))
    dense["embedding"][:] = shard.embedding
    group_heads, head_dim = arch.heads // arch.kv_heads, arch.head_dim
    for layer, weights in enumerate(shard.layers):
        # [groups, hidden, (group_heads + 2) * head_dim] -> queries, keys, values side by side
        attention, moe = weights.attention, weights.feed_forward
        assert isinstance(attention, GroupedQueryWeights), layer
        assert isinstance(moe, MoeWeights), layer
        assert attention.head_norms is not None, layer
        assert not isinstance(moe.router.matrix, MappedMatrix), layer
        grouped = attention.qkv.reshape(arch.kv_heads, arch.hidden, group_heads + 2, head_dim)
        by_part = grouped.transpose(1, 0, 2, 3)  # [hidden, groups, group_heads + 2, head_dim]
        parts = (by_part[:, :, :-2], by_part[:, :, -2], by_part[:, :, -1])
        queries_keys_values = [part.reshape(arch.hidden, -1) for part in parts]
        dense[f"layers.{layer}.input_norm"][:] = weights.input_norm
        dense[f"layers.{layer}.qkv"][:] = np.concatenate(queries_keys_values, axis=1)
        dense[f"layers.{layer}.query_norm"][:] = attention.head_norms[0]
        dense[f"layers.{layer}.key_norm"][:] = attention.head_norms[-1]
        dense[f"layers.{layer}.output"][:] = attention.output.reshape(-1, arch.hidden)
        dense[f"layers.{layer}.post_norm"][:] = weights.post_norm
        dense[f"layers.{layer}.router"][:] = moe.router.matrix
    dense["final_norm"][:] = shard.final_norm
    if not arch.tied_embeddings:
        assert not isinstance(shard.lm_head, MappedMatrix)
        dense["lm_head"][:] = shard.lm_head
    return dense


def read_experts(
    directory: Path, arch: Architecture, experts_by_layer: Sequence[Sequence[int]]
) -> Parameters:
    """Read each layer's experts, in slot order; raises CheckpointError as `read_dense`."""
    experts = Parameters.zeros(expert_layout(arch, [len(named) for named in experts_by_layer]))
    for layer, named in enumerate(experts_by_layer):
        read = load_experts(directory, arch, layer, named)
        experts[f"layers.{layer}.gate_up"][:] = read.gate_up
        experts[f"layers.{layer}.down"][:] = read.down
    return experts


def dense_tensors(dense: Parameters, arch: Architecture) -> dict[str, Float32s]:
    """The dense parameters under Hugging Face's names, linear layers [outputs, inputs]."""
    tensors = {
        "model.embed_tokens.weight": dense["embedding"],
        "model.norm.weight": dense["final_norm"],
    }
    if not arch.tied_embeddings:
        tensors["lm_head.weight"] = dense["lm_head"].T
    query_end = arch.heads * arch.head_dim
    key_end = query_end + arch.kv_heads * arch.head_dim
    for layer in range(arch.layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        query, key, value = np.split(dense[f"{ours}.qkv"], [query_end, key_end], axis=1)
        tensors |= {
            f"{theirs}.input_layernorm.weight": dense[f"{ours}.input_norm"],
            f"{theirs}.self_attn.q_proj.weight": query.T,
            f"{theirs}.self_attn.k_proj.weight": key.T,
            f"{theirs}.self_attn.v_proj.weight": value.T,
            f"{theirs}.self_attn.q_norm.weight": dense[f"{ours}.query_norm"],
            f"{theirs}.self_attn.k_norm.weight": dense[f"{ours}.key_norm"],
            f"{theirs}.self_attn.o_proj.weight": dense[f"{ours}.output"].T,
            f"{theirs}.post_attention_layernorm.weight": dense[f"{ours}.post_norm"],
            f"{theirs}.mlp.gate.weight": dense[f"{ours}.router"].T,
        }
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def expert_tensors(
    experts: Parameters, arch: Architecture, experts_by_layer: Sequence[Sequence[int]]
) -> dict[str, Float32s]:
    """One chip's experts under Hugging Face's names, [outputs, inputs]."""
    tensors: dict[str, Float32s] = {}
    for layer, named in enumerate(experts_by_layer):
        gate_up, down = experts[f"layers.{layer}.gate_up"], experts[f"layers.{layer}.down"]
        for slot, expert in enumerate(named):
            prefix = f"model.layers.{layer}.mlp.experts.{expert}"
            gate, up = np.split(gate_up[slot], [arch.expert_intermediate], axis=1)
            tensors[f"{prefix}.gate_proj.weight"] = np.ascontiguousarray(gate.T)
            tensors[f"{prefix}.up_proj.weight"] = np.ascontiguousarray(up.T)
            tensors[f"{prefix}.down_proj.weight"] = np.ascontiguousarray(down[slot].T)
    return tensors
