"""A slow count of a step's computing and reading on one chip, by walking through it.

By layer, token, head and key, from the model's dimensions and the architectures' public
definitions, without the emulator's formulas. A token's experts are a function of the token.
"""

from dataclasses import dataclass, field

from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat

Request = tuple[int, int]  # new tokens, context tokens
LOGIT_BYTES = 4


def picked(model: ModelSpec, layer: int, token: int) -> list[int]:
    """Distinct experts of one token in one layer."""
    first = 7 * token + 3 * layer
    return [(first + step) % model.experts for step in range(model.experts_per_token)]


def matrix_bytes(storage: WeightFormat, rows: int, columns: int) -> int:
    """Element by element, with a scale at each block's beginning."""
    match storage:
        case WeightFormat.FP32:
            return 4 * rows * columns
        case WeightFormat.BF16:
            return 2 * rows * columns
        case WeightFormat.FP8_BLOCK128:
            scales = len(range(0, rows, 128)) * len(range(0, columns, 128))
            return rows * columns + 4 * scales
        case WeightFormat.MXFP4:
            return rows * (len(range(0, columns, 2)) + len(range(0, columns, 32)))
        case WeightFormat.NVFP4:
            return rows * (len(range(0, columns, 2)) + len(range(0, columns, 16)))


@dataclass
class Count:
    """Flops of matrix products, bytes of HBM, and tokens' experts."""

    flops: int = 0
    hbm_bytes: int = 0
    pairs: list[int] = field(default_factory=list)  # of each layer with experts
    distinct: list[int] = field(default_factory=list)

    def product(self, outputs: int, inputs: int) -> None:
        """One row times a matrix: a multiplication and an addition per element."""
        self.flops += 2 * outputs * inputs


class Walk:
    """Counts one step of `requests` on one chip that holds all of `model`."""

    def __init__(self, model: ModelSpec, requests: list[Request]) -> None:
        self.model = model
        self.requests = requests
        self.count = Count()

    def step(self) -> Count:
        for layer in range(self.model.layers):
            self.attention(layer)
            if layer < self.model.first_dense_layers or not self.model.experts:
                self.network(self.model.dense_intermediate, self.model.projection_format)
            else:
                self.experts(layer)
        self.ends()
        return self.count

    @property
    def tokens(self) -> int:
        return sum(new for new, _ in self.requests)

    def weights(self, storage: WeightFormat, *shapes: tuple[int, int]) -> None:
        self.count.hbm_bytes += sum(matrix_bytes(storage, *shape) for shape in shapes)

    def vectors(self, *widths: int) -> None:
        self.count.hbm_bytes += sum(widths) * self.model.weight_bytes_per_param

    def attention(self, layer: int) -> None:
        model = self.model
        windowed = model.window_tokens > 0 and (layer + 1) % model.full_attention_every != 0
        reach = model.window_tokens if windowed else 10**12
        self.vectors(model.hidden, model.hidden)  # both norms of the layer
        if model.latent is not None:
            self.latent_attention()
            return
        heads, groups, width, hidden = model.heads, model.kv_heads, model.head_dim, model.hidden
        storage = model.projection_format
        self.weights(storage, (heads * width, hidden), (hidden, heads * width))
        self.weights(storage, (groups * width, hidden), (groups * width, hidden))
        if model.query_key_norms:
            self.vectors(width, width)
        if model.attention_bias:
            self.vectors(heads * width, groups * width, groups * width, hidden)
        if model.sinks:
            self.vectors(heads)
        token_bytes = 2 * groups * width * model.kv_bytes_per_element
        for new, context in self.requests:
            self.count.hbm_bytes += min(context, reach - 1) * token_bytes
            for position in range(context, context + new):
                self.count.hbm_bytes += token_bytes
                for _ in range(heads):
                    self.count.product(width, hidden)  # its query
                    for _ in range(min(position + 1, reach)):
                        self.count.product(1, width)  # a score
                        self.count.product(width, 1)  # a value times its weight
                    self.count.product(hidden, width)  # its part of the output
                for _ in range(groups):
                    self.count.product(width, hidden)
                    self.count.product(width, hidden)

    def latent_attention(self) -> None:
        model, latent = self.model, self.model.latent
        assert latent is not None
        storage, hidden, heads = model.projection_format, model.hidden, model.heads
        query_width = latent.nope_dim + latent.rope_dim
        self.weights(storage, (latent.query_rank, hidden))
        self.weights(storage, (latent.kv_rank + latent.rope_dim, hidden))
        self.weights(storage, (heads * query_width, latent.query_rank))
        self.weights(storage, (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank))
        self.weights(storage, (hidden, heads * latent.value_dim))
        self.vectors(latent.query_rank, latent.kv_rank)
        token_bytes = (latent.kv_rank + latent.rope_dim) * model.kv_bytes_per_element
        for new, context in self.requests:
            self.count.hbm_bytes += (context + new) * token_bytes
            for _ in range(new):
                self.count.product(latent.query_rank, hidden)
                self.count.product(latent.kv_rank + latent.rope_dim, hidden)
                for _ in range(heads):
                    self.count.product(query_width, latent.query_rank)
                    self.count.product(hidden, latent.value_dim)
            self.count.flops += min(self.folded(new, context), self.unfolded(new, context))

    def folded(self, new: int, context: int) -> int:
        """All heads on the latent itself: queries and answers are turned, keys are not."""
        count, latent = Count(), self.model.latent
        assert latent is not None
        for _ in range(self.model.heads):
            for position in range(context, context + new):
                count.product(latent.kv_rank, latent.nope_dim)
                count.product(latent.value_dim, latent.kv_rank)
                for _ in range(position + 1):
                    count.product(1, latent.kv_rank + latent.rope_dim)
                    count.product(latent.kv_rank, 1)
        return count.flops

    def unfolded(self, new: int, context: int) -> int:
        """All heads on their own keys and values, made for every token seen."""
        count, latent = Count(), self.model.latent
        assert latent is not None
        for _ in range(self.model.heads):
            for _ in range(context + new):
                count.product(latent.nope_dim + latent.value_dim, latent.kv_rank)
            for position in range(context, context + new):
                for _ in range(position + 1):
                    count.product(1, latent.nope_dim + latent.rope_dim)
                    count.product(latent.value_dim, 1)
        return count.flops

    def network(self, width: int, storage: WeightFormat) -> None:
        hidden = self.model.hidden
        self.weights(storage, (width, hidden), (width, hidden), (hidden, width))
        for _ in range(self.tokens):
            self.row_through(width)

    def row_through(self, width: int) -> None:
        hidden = self.model.hidden
        self.count.product(width, hidden)  # gate
        self.count.product(width, hidden)  # up
        self.count.product(hidden, width)  # down

    def experts(self, layer: int) -> None:
        model = self.model
        width, hidden, storage = model.expert_intermediate, model.hidden, model.expert_format
        self.weights(model.plain_format, (model.experts, hidden))
        if model.router_bias is not None:
            self.weights(model.router_bias, (1, model.experts))
        used: set[int] = set()
        pairs = 0
        for token in range(self.tokens):
            self.count.product(model.experts, hidden)
            for expert in picked(model, layer, token):
                used.add(expert)
                pairs += 1
                self.row_through(width)
        for _ in used:
            self.weights(storage, (width, hidden), (width, hidden), (hidden, width))
            if model.expert_bias:
                self.vectors(width, width, hidden)
        if model.shared_experts:
            self.network(model.shared_experts * width, model.projection_format)
        self.count.pairs.append(pairs)
        self.count.distinct.append(len(used))

    def ends(self) -> None:
        model = self.model
        row_bytes = model.hidden * model.weight_bytes_per_param
        self.count.hbm_bytes += self.tokens * row_bytes  # embedded
        self.vectors(model.hidden)  # the last norm
        self.weights(model.plain_format, (model.vocab, model.hidden))
        for _ in self.requests:
            self.count.product(model.vocab, model.hidden)
            self.count.hbm_bytes += 2 * LOGIT_BYTES * model.vocab  # written, and read to sample
