"""The shape of a model: the dimensions that set its time, memory and energy.

A model here is a decoder of equal layers: grouped-query attention with normalised queries and keys,
a router and SwiGLU experts, as in Qwen3-MoE. It holds no weights and knows no framework.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from emulator.errors import ConfigError
from emulator.specs.figure import Figure, NamedFigures

_DTYPE_OF_BYTES = {2: "bf16", 4: "fp32"}
_BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "float32": 4}
_HF_KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_intermediate",
    "vocab_size": "vocab",
    "max_position_embeddings": "max_context_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A mixture-of-experts decoder; raises ConfigError for dimensions that make no such model.

    `dense_intermediate` is 0: models with some dense layers are not timed.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    dense_intermediate: int = 0
    vocab: int
    max_context_tokens: int
    tied_embeddings: bool
    weight_bytes_per_param: int = 2
    kv_bytes_per_element: int = 2
    source: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 1 and field.name != "dense_intermediate":
                raise self._refusal(field.name, "at least 1")
        if self.heads % self.kv_heads:
            raise self._refusal("kv_heads", f"a divisor of the {self.heads} heads")
        if self.experts_per_token > self.experts:
            raise self._refusal("experts_per_token", f"at most the {self.experts} experts")
        if self.dense_intermediate:
            raise self._refusal("dense_intermediate", "0 (every layer has experts)")
        if self.weight_bytes_per_param not in _DTYPE_OF_BYTES:
            raise self._refusal("weight_bytes_per_param", "2 (BF16) or 4 (FP32)")

    def _refusal(self, field: str, expected: str) -> ConfigError:
        return ConfigError(
            field=f"{self.name}.{field}", value=getattr(self, field), expected=expected
        )

    @classmethod
    def from_hf_config(cls, name: str, config: Mapping[str, Any], source: str) -> Self:
        """The model that a Hugging Face config.json of the Qwen3-MoE architecture describes.

        Missing head_dim is hidden / heads, missing dtype BF16, as the architecture's defaults.
        `norm_topk_prob` changes which numbers are computed, not how many, and is not kept.
        Raises ConfigError for another architecture, a missing or wrong key, or what is not timed:
        layers without experts, attention with bias or a sliding window.
        """
        if "num_experts" not in config and "num_local_experts" in config:
            # The same number, as newer versions of transformers write it.
            config = {**config, "num_experts": config["num_local_experts"]}
        _check_hf_architecture(config)
        dims = {ours: _hf_int(config, theirs) for theirs, ours in _HF_KEYS.items()}
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
        if dtype not in _BYTES_OF_DTYPE:
            raise ConfigError(field="dtype", value=dtype, expected="bfloat16, float16 or float32")
        if config.get("head_dim") is None:
            head_dim = dims["hidden"] // max(1, dims["heads"])
        else:
            head_dim = _hf_int(config, "head_dim")
        return cls(
            name=name,
            head_dim=head_dim,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            weight_bytes_per_param=_BYTES_OF_DTYPE[dtype],
            kv_bytes_per_element=_BYTES_OF_DTYPE[dtype],
            source=source,
            **dims,
        )

    @property
    def dtype(self) -> str:
        """The type that matrix products run in: "bf16" or "fp32"."""
        return _DTYPE_OF_BYTES[self.weight_bytes_per_param]

    @property
    def query_width(self) -> int:
        """Elements of one token's queries in one layer."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys (or values) in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token_layer(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_width * self.kv_bytes_per_element

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return self.layers * self.kv_bytes_per_token_layer

    @property
    def projection_parameters_per_layer(self) -> int:
        """Query, key, value and output projections of one layer."""
        return 2 * self.hidden * (self.query_width + self.kv_width)

    @property
    def router_parameters_per_layer(self) -> int:
        """The router of one layer."""
        return self.hidden * self.experts

    @property
    def attention_parameters_per_layer(self) -> int:
        """Projections of one layer with the norms of its queries and keys."""
        return self.projection_parameters_per_layer + 2 * self.head_dim

    @property
    def replicated_parameters_per_layer(self) -> int:
        """What every rank holds of one layer: attention, its two norms, the router."""
        norms = 2 * self.hidden
        return self.attention_parameters_per_layer + norms + self.router_parameters_per_layer

    @property
    def expert_parameters(self) -> int:
        """One expert: gate, up and down projections."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def embedding_parameters(self) -> int:
        """Embedding and LM head: one table when they are tied, two when not."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._parameters_with(self.experts)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token meets, embedding and LM head counted whole."""
        return self._parameters_with(self.experts_per_token)

    def replica_parameters(self) -> int:
        """What every rank holds: all layers without experts, final norm, embedding, LM head."""
        return self._parameters_with(0)

    def _parameters_with(self, experts_per_layer: int) -> int:
        layer = self.replicated_parameters_per_layer + experts_per_layer * self.expert_parameters
        return self.layers * layer + self.hidden + self.embedding_parameters

    def figures(self) -> NamedFigures:
        """Every dimension by its field's name, then the derived sizes."""
        units = {
            "max_context_tokens": "tokens",
            "weight_bytes_per_param": "bytes",
            "kv_bytes_per_element": "bytes",
            "tied_embeddings": "flag",
        }
        sources = {
            "kv_bytes_per_element": "assumed: the cache has the weights' type, as by default"
        }
        dims = tuple(
            (
                field.name,
                Figure(
                    value=float(getattr(self, field.name)),
                    unit=units.get(field.name, "count"),
                    source=sources.get(field.name, self.source),
                ),
            )
            for field in fields(self)
            if field.name not in ("name", "source", "dense_intermediate")
        )
        derived = tuple(
            (name, Figure(value=getattr(self, name), unit=unit, source="arithmetic from the above"))
            for name, unit in (
                ("parameters", "count"),
                ("active_parameters", "count"),
                ("expert_parameters", "count"),
                ("kv_bytes_per_token", "bytes"),
            )
        )
        return dims + derived


def _check_hf_architecture(config: Mapping[str, Any]) -> None:
    """Raises ConfigError for what a Qwen3-MoE config may say that is not timed."""
    wanted: dict[str, tuple[object, ...]] = {
        "model_type": ("qwen3_moe",),
        "decoder_sparse_step": (None, 1),
        "mlp_only_layers": (None, []),
        "attention_bias": (None, False),
        "use_sliding_window": (None, False),
    }
    for key, accepted in wanted.items():
        value = config.get(key)
        if value not in accepted:
            raise ConfigError(field=key, value=value, expected=str(accepted[-1]))


def _hf_int(config: Mapping[str, Any], key: str) -> int:
    """The whole number under `key`; raises ConfigError when it is missing or something else."""
    value = config.get(key)
    if type(value) is not int or value < 1:
        shown = "missing" if value is None else value
        raise ConfigError(field=key, value=shown, expected="a whole number above 0")
    return value
