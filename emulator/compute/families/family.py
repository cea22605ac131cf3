"""What a model family says: its config.json, the names of its tensors, and their layout.

The base is the decoder that most families share (Llama's): grouped-query attention and a SwiGLU
network in each layer. A family overrides what it has otherwise. Kernels are shared: a family has no
arithmetic of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from emulator.compute.architecture import Architecture, Routing
from emulator.compute.config_reader import ConfigReader
from emulator.compute.mapped_matrix import Matrix
from emulator.compute.rope_settings import DEFAULT_THETA, RopeSettings, read_rope_settings
from emulator.compute.tensors import Cut, Shape, Tensors, whole_array
from emulator.compute.weights import (
    DenseWeights,
    DraftWeights,
    ExpertSet,
    GroupedQueryWeights,
    LatentWeights,
    RouterWeights,
)
from emulator.errors import CheckpointError
from emulator.formats.product_formats import NO_NVFP4

Named = Iterator[tuple[str, Shape]]

_LAYERS_MAX: Final = 10_000
"""Far more than any model has."""


class ModelFamily(ABC):
    """Models of one architecture; `names` are those in config.json's `architectures`.

    Defaults are transformers' for keys that config.json leaves out; by the None here, a head is its
    share of the hidden width, and has keys and values of its own.
    """

    names: ClassVar[tuple[str, ...]]
    default_theta: ClassVar[float] = DEFAULT_THETA
    default_norm_eps: ClassVar[float] = 1e-6
    default_head_dim: ClassVar[int | None] = None
    default_kv_heads: ClassVar[int | None] = None

    @abstractmethod
    def architecture(self, config: ConfigReader) -> Architecture:
        """Read `config`; raises CheckpointError for what is not computed, by name."""

    def fields(self, config: ConfigReader) -> dict[str, Any]:
        """The fields of `Architecture` that every family reads alike."""
        config.require("hidden_act", ("silu", "swish"))  # one function
        layers = config.whole("num_hidden_layers", most=_LAYERS_MAX)
        if not isinstance(config.values.get("layer_types") or [], list):
            raise config.refusal("layer_types", "must be a list")
        return {
            "family": config.values["architectures"][0],
            "layers": layers,
            "hidden": config.whole("hidden_size"),
            **self.head_fields(config),
            "windows": (0,) * layers,
            "vocab": config.whole("vocab_size"),
            "max_context_tokens": config.whole("max_position_embeddings"),
            "tied_embeddings": config.flag("tie_word_embeddings"),
            "norm_eps": config.real("rms_norm_eps", default=self.default_norm_eps),
            "rope": self.rope(config),
            "routing": Routing(normalise=True),
        }

    def head_fields(self, config: ConfigReader) -> dict[str, Any]:
        """The fields that say what attention's heads are."""
        heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
        head_dim = _left_out(config, "head_dim", self.default_head_dim, hidden // heads)
        if head_dim % 2 or not head_dim:
            key = "head_dim" if "head_dim" in config.values else "hidden_size"
            raise config.refusal(key, f"must give {heads} heads an even width, for rotary pairs")
        kv_heads = _left_out(config, "num_key_value_heads", self.default_kv_heads, heads)
        if heads % kv_heads:
            wanted = f"{kv_heads} heads of keys and values do not divide the {heads} of queries"
            raise config.refusal("num_key_value_heads", wanted)
        return {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "score_scale": head_dim**-0.5,
        }

    def rope(self, config: ConfigReader) -> RopeSettings:
        """The rotary settings."""
        return read_rope_settings(config.values, config.path, default_theta=self.default_theta)

    def dense_fields(self, config: ConfigReader, layers: Sequence[int]) -> dict[str, Any]:
        """Fields of a model in which these layers are dense."""
        width = config.whole("intermediate_size") if layers else 0
        return {"dense_layers": tuple(layers), "dense_intermediate": width}

    # Names and shapes, for a check of the whole checkpoint before it is read.

    def layer_tensors(self, arch: Architecture, layer: int) -> Named:
        """All tensors of a layer but its experts'."""
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (arch.hidden,)
        yield from self.attention_tensors(arch, f"{prefix}.self_attn")
        yield f"{prefix}.post_attention_layernorm.weight", (arch.hidden,)
        if layer in arch.dense_layers:
            yield from network_tensors(f"{prefix}.mlp", arch.dense_intermediate, arch.hidden)
        else:
            yield self.router_name(layer), (arch.experts, arch.hidden)

    def draft_tensors(self, arch: Architecture) -> Named:
        """Those of the layer that drafts and of what is around it, but its experts'."""
        raise AssertionError(f"{arch.family} has no layers that draft")

    def attention_tensors(self, arch: Architecture, prefix: str) -> Named:
        """Those of a layer's attention."""
        for name, outputs, inputs in _projections(arch, prefix):
            yield f"{name}.weight", (outputs, inputs)
            if arch.attention_bias:
                yield f"{name}.bias", (outputs,)
        if arch.query_key_norms:
            yield f"{prefix}.q_norm.weight", (arch.head_dim,)
            yield f"{prefix}.k_norm.weight", (arch.head_dim,)
        if arch.sinks:
            yield f"{prefix}.sinks", (arch.heads,)

    def router_name(self, layer: int) -> str:
        """The router's matrix."""
        return f"model.layers.{layer}.mlp.gate.weight"

    def check_experts(self, tensors: Tensors, arch: Architecture, layer: int) -> None:
        """Check the shapes of all experts of a layer."""
        for expert in range(arch.experts):
            for name, shape in self.expert_tensors(arch, layer, expert):
                tensors.check(name, shape)

    def expert_tensors(self, arch: Architecture, layer: int, expert: int) -> Named:
        """One expert's gate, up and down."""
        width, hidden = arch.expert_intermediate, arch.hidden
        gate, up, down = self.expert_names(layer, expert)
        yield gate, (width, hidden)
        yield up, (width, hidden)
        yield down, (hidden, width)

    def expert_names(self, layer: int, expert: int) -> tuple[str, str, str]:
        """One expert's gate, up and down matrices, [outputs, inputs]."""
        prefix = f"model.layers.{layer}.mlp.experts.{expert}"
        return (
            f"{prefix}.gate_proj.weight",
            f"{prefix}.up_proj.weight",
            f"{prefix}.down_proj.weight",
        )

    # Reading.

    def attention(
        self, tensors: Tensors, arch: Architecture, layer: int, share: slice
    ) -> GroupedQueryWeights | LatentWeights:
        """The head groups in `share` of a layer."""
        prefix = f"model.layers.{layer}.self_attn"
        read = {
            name: tensors.rows(name, *shape) for name, shape in self.attention_tensors(arch, prefix)
        }
        group_heads = arch.heads // arch.kv_heads

        def by_group(kind: str) -> list[Any]:
            """Those of queries, keys and values, [groups of the share, outputs, ...]."""
            parts = [read[f"{prefix}.{part}_proj.{kind}"] for part in "qkv"]
            return [part.reshape(arch.kv_heads, -1, *part.shape[1:])[share] for part in parts]

        output = read[f"{prefix}.o_proj.weight"].reshape(arch.hidden, arch.kv_heads, -1)
        norms = None
        if arch.query_key_norms:
            pair = (read[f"{prefix}.q_norm.weight"], read[f"{prefix}.k_norm.weight"])
            norms = np.repeat(pair, [group_heads, 1], axis=0)
        sinks = read[f"{prefix}.sinks"].reshape(arch.kv_heads, -1)[share] if arch.sinks else None
        return GroupedQueryWeights(
            qkv=tensors.linears(*by_group("weight")),
            qkv_bias=np.concatenate(by_group("bias"), axis=1)[:, None]
            if arch.attention_bias
            else None,
            head_norms=norms,
            output=tensors.linears(output.transpose(1, 0, 2)[share]),
            output_bias=read[f"{prefix}.o_proj.bias"] if arch.attention_bias else None,
            sinks=sinks.ravel() if sinks is not None else None,
        )

    def dense(self, tensors: Tensors, arch: Architecture, layer: int, share: slice) -> DenseWeights:
        """The parts in `share`, of as many as there are head groups, of a dense layer's network."""
        prefix = f"model.layers.{layer}.mlp"
        return read_network(
            tensors, prefix, arch.dense_intermediate, arch.hidden, arch.groups, share
        )

    def shared(self, tensors: Tensors, arch: Architecture, layer: int) -> DenseWeights:
        """The network beside a layer's experts, where the architecture has one."""
        prefix = f"model.layers.{layer}.mlp.shared_experts"
        width = arch.shared_intermediate
        return read_network(tensors, prefix, width, arch.hidden, 1, slice(None))

    def drafts(
        self, tensors: Tensors, arch: Architecture, embedding: NDArray[Any], lm_head: Matrix
    ) -> DraftWeights:
        """What is around the layer that drafts, where the architecture has one.

        It shares the model's `embedding` and `lm_head` where the checkpoint has no others for it.
        """
        del tensors, embedding, lm_head
        raise AssertionError(f"{arch.family} has no layers that draft")

    def router(self, tensors: Tensors, arch: Architecture, layer: int) -> RouterWeights:
        """What chooses a layer's experts."""
        rows = tensors.rows(self.router_name(layer), arch.experts, arch.hidden)
        return RouterWeights(matrix=tensors.linear(rows))

    def read_expert(
        self,
        tensors: Tensors,
        arch: Architecture,
        layer: int,
        expert: int,
        into: ExpertSet,
        slot: int,
    ) -> None:
        """Read one expert `into` a slot."""
        named = self.expert_tensors(arch, layer, expert)
        gate, up, down = (tensors.rows(name, *shape) for name, shape in named)
        into.gate_up[slot] = tensors.linear(gate, up)
        into.down[slot] = tensors.linear(down)


def _left_out(config: ConfigReader, key: str, absent: int | None, null: int) -> int:
    """The number under `key`; `absent`, if any, where there is no such key, `null` for null."""
    has_default = absent is not None and key not in config.values
    return config.whole(key, default=absent if has_default else null)


def stored_formats(config: ConfigReader, *methods: str) -> ConfigReader:
    """Its `quantization_config`, by one of `methods` if by any.

    Raises CheckpointError for another method, and for NVFP4 with the reason.
    """
    found = config.section("quantization_config")
    names = (found.values.get("quant_algo"), found.values.get("format"))
    if any(str(name).lower().startswith("nvfp4") for name in names):
        raise CheckpointError(f"{found.path}: {NO_NVFP4}")
    if methods:
        found.require("quant_method", methods)
    else:
        config.require("quantization_config", ())
    return found


def experts_per_token(config: ConfigReader, experts: int) -> int:
    """The experts of a token, no more than the `experts` that it may choose from."""
    chosen = config.whole("num_experts_per_tok")
    if chosen > experts:
        wanted = f"must be at most {experts}, the experts that a token may choose from"
        raise config.refusal("num_experts_per_tok", wanted)
    return chosen


def _projections(arch: Architecture, prefix: str) -> Iterator[tuple[str, int, int]]:
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    yield f"{prefix}.q_proj", queries, arch.hidden
    yield f"{prefix}.k_proj", keys, arch.hidden
    yield f"{prefix}.v_proj", keys, arch.hidden
    yield f"{prefix}.o_proj", arch.hidden, queries


def network_tensors(prefix: str, width: int, hidden: int) -> Named:
    """Names and shapes of a gated network."""
    yield f"{prefix}.gate_proj.weight", (width, hidden)
    yield f"{prefix}.up_proj.weight", (width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)


def read_network(
    tensors: Tensors, prefix: str, width: int, hidden: int, parts: int, share: slice
) -> DenseWeights:
    """A gated network cut by columns into equal `parts`, of which those in `share`."""
    missing = -width % parts

    def by_part(matrix: Cut) -> Cut:
        """[width, hidden] -> [parts of the share, part, hidden], missing rows zeros."""
        if missing:
            stored = whole_array(matrix)
            matrix = np.concatenate([stored, np.zeros((missing, hidden), dtype=stored.dtype)])
        return matrix.reshape(parts, -1, hidden)[share]

    gate, up, down = (
        tensors.rows(name, *shape) for name, shape in network_tensors(prefix, width, hidden)
    )
    return DenseWeights(
        gate_up=tensors.linears(by_part(gate), by_part(up)),
        down=tensors.linears(by_part(down.T).transpose(0, 2, 1)),
    )
