"""Multi-head latent attention: keys and values cached as one small vector for all heads.

As in DeepSeek-V2 (arXiv 2405.04434): a token's cache is a latent of `kv_rank` elements and one
rotated key of `rope_dim` elements. Up-projections turn the latent into each head's keys and values,
or are folded into queries and outputs.
"""

from dataclasses import dataclass, fields

from emulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Ranks of the two down-projections, and a head's dimensions; raises ConfigError below 1."""

    query_rank: int
    kv_rank: int
    nope_dim: int  # of a head's query and key, without position
    rope_dim: int  # of a head's query and of the key that heads share, rotated
    value_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ConfigError(f"latent.{field.name}", value, "at least 1")

    @property
    def cached_width(self) -> int:
        """Cached elements of one token in one layer, for all heads together."""
        return self.kv_rank + self.rope_dim

    @property
    def query_width_per_head(self) -> int:
        """Elements of one head's query."""
        return self.nope_dim + self.rope_dim

    @property
    def up_width_per_head(self) -> int:
        """Elements of one head's key (without position) and value, from the latent."""
        return self.nope_dim + self.value_dim

    @property
    def folded_macs_per_score(self) -> int:
        """Multiply-accumulates of one head's (query, key) pair on the latent itself.

        The score takes latent and rotated key, the weighted sum takes the latent.
        """
        return self.cached_width + self.kv_rank

    @property
    def unfolded_macs_per_score(self) -> int:
        """The same on a head's own keys and values, from the latent."""
        return self.query_width_per_head + self.value_dim
