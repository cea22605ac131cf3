"""A model's dimensions, which set its time, memory and energy.

A decoder: grouped-query or latent attention, in some models partly with a sliding window, and dense
or expert feed-forward networks. A checkpoint's multi-token-prediction module is neither stored nor
timed.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.specs import model_tensors
from emulator.specs.figure import NamedFigures
from emulator.specs.latent_attention import LatentAttention
from emulator.specs.model_figures import model_figures
from emulator.specs.tensor_group import TensorGroup
from emulator.specs.weight_format import WeightFormat


class Sparsity(StrEnum):
    """DENSE: no useful zeros. STRUCTURED: enough zeros in a row's weights for the sparse rate of
    16-bit products; bytes count as dense (assumed: compressed layouts are unpublished).
    """

    DENSE = "dense"
    STRUCTURED = "structured"


_FORMAT_OF_BYTES: Final = {2: WeightFormat.BF16, 4: WeightFormat.FP32}
_MAY_BE_ZERO: Final = (
    "experts",
    "experts_per_token",
    "expert_intermediate",
    "dense_intermediate",
    "first_dense_layers",
    "shared_experts",
    "window_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder; raises ConfigError for inconsistent dimensions.

    Attributes:
        experts: routed experts of a layer; 0 for a dense model, as are the two fields after it.
        first_dense_layers: layers before the first one with experts.
        dense_intermediate: of the feed-forward network of a layer without experts.
        shared_experts: experts, as wide as a routed one, that every token uses.
        full_attention_every: one layer in so many attends to everything, the others to the last
            `window_tokens` tokens, itself included; 1 and 0 without a window.
        latent: for latent attention; `kv_heads` is then `heads`, and `head_dim` a value's.
        weight_bytes_per_param: unquantised weights, 2 (BF16) or 4 (FP32).
        stored_projection_format: attention's, dense and shared matrices; None for unquantised, as
            embedding, LM head, norms and routers always are.
        stored_expert_format: routed experts, likewise.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    first_dense_layers: int = 0
    dense_intermediate: int = 0
    shared_experts: int = 0
    vocab: int
    max_context_tokens: int
    tied_embeddings: bool
    query_key_norms: bool = True
    attention_bias: bool = False
    sinks: bool = False
    router_bias: WeightFormat | None = None
    expert_bias: bool = False
    window_tokens: int = 0
    full_attention_every: int = 1
    latent: LatentAttention | None = None
    weight_bytes_per_param: int = 2
    stored_projection_format: WeightFormat | None = None
    stored_expert_format: WeightFormat | None = None
    kv_bytes_per_element: int = 2
    sparsity: Sparsity = Sparsity.DENSE
    source: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if type(value) is int and value < least:
                raise self._refusal(field.name, f"at least {least}")
        if self.weight_bytes_per_param not in _FORMAT_OF_BYTES:
            raise self._refusal("weight_bytes_per_param", "2 (BF16) or 4 (FP32)")
        self._check_attention()
        self._check_feed_forward()

    def _check_attention(self) -> None:
        if self.heads % self.kv_heads:
            raise self._refusal("kv_heads", f"a divisor of the {self.heads} heads")
        if self.full_attention_every > self.layers:
            raise self._refusal("full_attention_every", f"at most the {self.layers} layers")
        if (self.window_tokens > 0) != (self.full_attention_every > 1):
            raise self._refusal("window_tokens", "a window where some layers have one, else 0")
        if self.latent is None:
            return
        if self.kv_heads != self.heads or self.head_dim != self.latent.value_dim:
            raise self._refusal("latent", "kv_heads = heads and head_dim = the latent's value_dim")
        if self.query_key_norms or self.attention_bias or self.sinks or self.window_tokens:
            raise self._refusal("latent", "no query and key norms, biases, sinks or window")

    def _check_feed_forward(self) -> None:
        if self.experts_per_token > self.experts:
            raise self._refusal("experts_per_token", f"at most the {self.experts} experts")
        for name in ("experts_per_token", "expert_intermediate"):
            if (getattr(self, name) > 0) != (self.experts > 0):
                raise self._refusal(name, f"above 0 exactly with experts, here {self.experts}")
        if self.shared_experts and not self.experts:
            raise self._refusal("shared_experts", "0 in a model without experts")
        if self.first_dense_layers >= self.layers or (self.first_dense_layers and not self.experts):
            raise self._refusal("first_dense_layers", "fewer than the layers, with experts after")
        if (self.dense_intermediate > 0) != (self.dense_layers > 0):
            raise self._refusal(
                "dense_intermediate", f"above 0 exactly with dense layers, here {self.dense_layers}"
            )

    def _refusal(self, field: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.name}.{field}", getattr(self, field), expected)

    def at_precision(
        self, precision: str, *, kv_bytes_per_element: int | None = None
    ) -> "ModelSpec":
        """A copy with another storage of weights.

        "bf16": everything; "fp8" and "mxfp8": all quantisable matrices, in blocks of 128 x 128 or
        MX blocks; "mxfp4" and "nvfp4": routed experts alone (as in the public FP4 checkpoints of
        DeepSeek-R1 and gpt-oss), or all of a dense model's matrices; "w4a8": all matrices in MXFP4.
        `kv_bytes_per_element`, if given, changes the cache. Raises
        ConfigError for another precision.
        """
        formats = {
            "bf16": WeightFormat.BF16,
            "fp8": WeightFormat.FP8_BLOCK128,
            "mxfp8": WeightFormat.MXFP8,
            "mxfp4": WeightFormat.MXFP4,
            "w4a8": WeightFormat.MXFP4,
            "nvfp4": WeightFormat.NVFP4,
        }
        if precision not in formats:
            raise ConfigError("precision", precision, f"one of {', '.join(formats)}")
        storage = formats[precision]
        cache = self.kv_bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
        for_experts = precision in ("mxfp4", "nvfp4")
        keeps_projections = for_experts and self.experts > 0
        plain = 2 if storage is WeightFormat.BF16 else self.weight_bytes_per_param
        quantised = None if storage is WeightFormat.BF16 else storage
        return replace(
            self,
            weight_bytes_per_param=plain,
            stored_projection_format=self.stored_projection_format
            if keeps_projections
            else quantised,
            stored_expert_format=quantised if self.experts else None,
            kv_bytes_per_element=cache,
        )

    @property
    def plain_format(self) -> WeightFormat:
        """Format of unquantised weights."""
        return _FORMAT_OF_BYTES[self.weight_bytes_per_param]

    @property
    def projection_format(self) -> WeightFormat:
        """Format of attention's matrices, and of dense and shared feed-forward networks."""
        return self.stored_projection_format or self.plain_format

    @property
    def expert_format(self) -> WeightFormat:
        """Format of routed experts."""
        return self.stored_expert_format or self.plain_format

    @property
    def dtype(self) -> str:
        """The type of unquantised matrix products: "bf16" or "fp32"."""
        return self.plain_format.value

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.first_dense_layers if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers without routed experts; they come first."""
        return self.layers - self.moe_layers

    @property
    def full_layers(self) -> int:
        """Layers i that attend to everything: i + 1 is a multiple of `full_attention_every`."""
        return self.layers // self.full_attention_every

    @property
    def window_layers(self) -> int:
        """Layers that attend to a window."""
        return self.layers - self.full_layers

    @property
    def query_width(self) -> int:
        """Elements of one token's queries in one layer."""
        if self.latent is not None:
            return self.heads * self.latent.query_width_per_head
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys (or values) in one layer; of a latent, half of it."""
        return self.kv_declared_heads * self.kv_declared_head_size

    @property
    def head_groups(self) -> int:
        """Parts that attention divides into without repeating a key or value head."""
        return self.kv_heads

    @property
    def kv_declared_heads(self) -> int:
        """Heads to declare so that a cache of keys and values has the true bytes.

        2 x heads x head size x bytes per element is `kv_bytes_per_token_layer`. A latent, kept once
        for all heads, is declared as one head of half its width.
        """
        return self.kv_heads if self.latent is None else 1

    @property
    def kv_declared_head_size(self) -> int:
        """Elements of a declared head; see `kv_declared_heads`."""
        return self.head_dim if self.latent is None else self.latent.cached_width // 2

    @property
    def kv_bytes_per_token_layer(self) -> int:
        """The cache of one token in one layer."""
        return 2 * self.kv_width * self.kv_bytes_per_element

    @property
    def kv_bytes_per_token(self) -> int:
        """The cache of one token that is inside every layer's window."""
        return self.layers * self.kv_bytes_per_token_layer

    @property
    def kv_bytes_per_token_full_layers(self) -> int:
        """Cache bytes of one more token in a long context: in layers that attend to all."""
        return self.full_layers * self.kv_bytes_per_token_layer

    @property
    def kv_window_bytes_per_request(self) -> int:
        """Maximum of a request in layers with a window, at any length."""
        return self.window_layers * self.window_tokens * self.kv_bytes_per_token_layer

    @property
    def expert_parameters(self) -> int:
        """One routed expert: gate, up and down projections, with their biases if it has any."""
        return model_tensors.parameters_of(model_tensors.expert_tensors(self))

    @property
    def expert_bytes(self) -> int:
        """One routed expert of one layer, as stored."""
        return model_tensors.bytes_of(model_tensors.expert_tensors(self))

    @property
    def embedding_parameters(self) -> int:
        """Embedding and LM head: one table when tied, two when not."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._parameters_with(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters used by one token, embedding and LM head counted whole."""
        return self._parameters_with(self.experts_per_token)

    def replica_parameters(self) -> int:
        """All but the routed experts."""
        return self._parameters_with(0)

    def _parameters_with(self, experts_per_layer: int) -> int:
        every_layer = (
            *model_tensors.query_tensors(self),
            *model_tensors.kv_tensors(self),
            *model_tensors.latent_tensors(self),
            *model_tensors.norm_tensors(self),
        )
        moe_layer = (*model_tensors.router_tensors(self), *model_tensors.shared_tensors(self))
        ends = model_tensors.final_norm_tensors(self)
        count = model_tensors.parameters_of
        return (
            self.layers * count(every_layer)
            + self.dense_layers * count(model_tensors.dense_tensors(self))
            + self.moe_layers * (count(moe_layer) + experts_per_layer * self.expert_parameters)
            + count(ends)
            + self.embedding_parameters
        )

    @property
    def weight_bytes(self) -> int:
        """All weights as stored, scales included."""
        return sum(
            group.copy_bytes * (group.layers * self.experts if group.name == "experts" else 1)
            for group in self.tensor_groups()
        )

    def tensor_groups(self) -> tuple[TensorGroup, ...]:
        """Weights in groups by their division over chips and cores."""
        return model_tensors.tensor_groups(self)

    def figures(self) -> NamedFigures:
        """Every dimension by its field's name, then the derived sizes."""
        return model_figures(self)
