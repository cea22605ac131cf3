"""Limits of one engine's schedulers: vLLM's flags, and the KV that fits into HBM."""

from dataclasses import asdict, dataclass

from emulator.errors import ConfigError
from serving.settings import PrefillOptions
from startup.typed_options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Per rank: tokens of a step, concurrent requests, KV blocks, and the prefill policy.

    `kv_blocks_per_rank` counts as vLLM's `num_gpu_blocks`, of which vLLM keeps one. `max_model_len`
    None is the model's context; `prefill_policy` None the default one. `prefix_caching` finds what
    traffic says that prompts share.

    Raises ConfigError for a number below 1, fewer than 2 blocks, block tokens that are no power of
    two, and a step with fewer tokens than requests, which vLLM refuses.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    kv_blocks_per_rank: int
    block_tokens: int
    max_model_len: int | None = None
    prefill_policy: str | None = None
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("kv_blocks_per_rank", 2),
            ("block_tokens", 1),
            ("max_model_len", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(field=name, value=value, expected=f"at least {least}")
        if self.block_tokens & (self.block_tokens - 1):
            raise ConfigError(
                field="block_tokens", value=self.block_tokens, expected="a power of two"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
                expected=f"at least max_num_seqs, {self.max_num_seqs}",
            )


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits(PrefillOptions):
    """A rank's limits under vLLM's names; `max_model_len` None is the model's own."""

    max_num_seqs: int = option(64, "requests at once on a rank")
    max_num_batched_tokens: int = option(8_192, "new tokens of a rank in a step")
    block_tokens: int = option(16, "tokens of a KV block", "--block-size")
    max_model_len: int | None = None
    prefix_caching: bool = option(
        True,
        "compute beginnings that prompts of a trace share anew each time",
        "--no-prefix-caching",
    )

    def with_kv(self, capacity_tokens: int) -> EngineLimits:
        """A rank's limits with so many tokens of KV, at least two blocks; raises ConfigError."""
        kv_blocks = max(2, capacity_tokens // self.block_tokens)
        return EngineLimits(kv_blocks_per_rank=kv_blocks, **asdict(self))
