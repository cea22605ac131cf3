"""Architecture of a computable model: the dimensions that shared kernels need, whatever its family.

A model family reads it from a Hugging Face config.json (`emulator.compute.families`).
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from emulator.compute.rope_settings import RopeSettings
from emulator.specs.latent_attention import LatentAttention

_LATENT_GROUPS = 16


class RouterScore(StrEnum):
    """How a router's logits become scores: over all experts of a layer, or each by itself."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen and weighted.

    Experts are chosen by score plus, if the checkpoint has one, a bias; where `groups` > 1, only in
    the `groups_chosen` groups with the largest sums of their two best. `normalise` makes the chosen
    scores add to one; `scale` multiplies them.
    """

    score: RouterScore = RouterScore.SOFTMAX
    normalise: bool
    groups: int = 1
    groups_chosen: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiGlu:
    """The gate of feed-forward networks: gate * sigmoid(alpha * gate) * (up + shift).

    With a `limit`, gate is at most that, and up lies within plus and minus it.
    """

    alpha: float = 1.0
    shift: float = 0.0
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Dimensions of a decoder; `family` names the reader of its tensors.

    Attributes:
        dense_layers: layers with a dense feed-forward network of `dense_intermediate`, ascending;
            the others have `experts`, of `expert_intermediate`.
        draft_layers: layers after those, which a checkpoint has to guess further tokens with.
        shared_intermediate: width of the network beside a layer's experts that every token uses.
        windows: by layer, also those that draft, the last tokens that a token attends to, itself
            included; 0 for all.
        latent: of multi-head latent attention; `kv_heads` is then `heads`.
        score_scale: factor of a query's product with a key.
        fp8_block: rows and columns of a stored FP8 matrix that share a scale; None without. How
            weights are stored makes no other architecture, so that it is not compared.
        mxfp4_experts: whether experts are stored in MXFP4; not compared either.
    """

    family: str
    layers: int
    draft_layers: int = 0
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    score_scale: float
    query_key_norms: bool = False
    attention_bias: bool = False
    sinks: bool = False
    windows: tuple[int, ...]
    latent: LatentAttention | None = None
    dense_layers: tuple[int, ...] = ()
    dense_intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_bias: bool = False
    shared_intermediate: int = 0
    routing: Routing
    gate: SwiGlu = SwiGlu()
    vocab: int
    max_context_tokens: int
    tied_embeddings: bool
    norm_eps: float
    rope: RopeSettings
    fp8_block: tuple[int, int] | None = field(default=None, compare=False)
    mxfp4_experts: bool = field(default=False, compare=False)

    @property
    def groups(self) -> int:
        """Head groups, the parts into which chips of a rank divide attention and dense networks."""
        if self.latent is None:
            return self.kv_heads
        return max(part for part in range(1, _LATENT_GROUPS + 1) if self.heads % part == 0)

    @property
    def kv_widths(self) -> tuple[int, int]:
        """Of a head's key and value of a token in the KV cache; a latent's values are the first of
        its keys.
        """
        if self.latent is None:
            return self.head_dim, self.head_dim
        return self.latent.cached_width, self.latent.kv_rank

    def attending_chips(self, tp: int) -> int:
        """Of a rank's `tp` chips, those that have head groups: as many as divide them evenly."""
        return math.gcd(tp, self.groups)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with experts, ascending; expert placements count these alone."""
        dense = frozenset(self.dense_layers)
        return tuple(layer for layer in range(self.layers) if layer not in dense)

    @property
    def draft_place(self) -> int:
        """The place after those of `expert_layers`: of the experts of the first draft layer."""
        return len(self.expert_layers)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return self.latent.rope_dim if self.latent else self.head_dim

    @property
    def expert_bias_width(self) -> int:
        """Elements of one expert's biases: gate and up, then down."""
        return 2 * self.expert_intermediate + self.hidden if self.expert_bias else 0
