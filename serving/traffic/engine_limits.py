"""Limits of one engine's schedulers: vLLM's flags, and the KV that fits into HBM."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, get_args

from emulator.errors import ConfigError
from serving.settings import PrefillOptions
from serving.traffic.draft_options import DraftOptions, check_acceptance
from startup.typed_options import option

SchedulingPolicy = Literal["fcfs", "priority"]
SCHEDULING_POLICIES: Final = get_args(SchedulingPolicy)

HBM_SHARE: Final = 0.92
"""vLLM's default --gpu-memory-utilization."""


MAX_NUM_SEQS: Final = 128
MAX_NUM_BATCHED_TOKENS: Final = 2_048
"""Of a server without limits of its own, as vLLM chooses them where its tensors are on a CPU, and
of what runs as one: `simulate`, `profile`.
"""
PLANNED_LIMITS: Final[Mapping[str, int]] = {"max_num_seqs": 1_024, "max_num_batched_tokens": 8_192}
"""Of what says which settings to serve with: `plan`, `compare`, `day`, and `pareto`'s steps. vLLM
chooses them for a server on an accelerator of 70 GiB or more; 128 seats would decide how many chips
a plan takes.
"""

SEARCHED_LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "max_num_seqs": (PLANNED_LIMITS["max_num_seqs"], 256),
    "max_num_batched_tokens": (PLANNED_LIMITS["max_num_batched_tokens"], 2_048),
}
"""That a plan tries, the first of each first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Requests at once on a rank, and new tokens of it in a step."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def words(self) -> str:
        """By vLLM's names."""
        return (
            f"max-num-seqs {self.max_num_seqs:,}, "
            f"max-num-batched-tokens {self.max_num_batched_tokens:,}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Per rank: tokens of a step, concurrent requests, KV blocks, and the prefill policy.

    `kv_blocks_per_rank` counts as vLLM's `num_gpu_blocks`, of which vLLM keeps one. `max_model_len`
    None is the model's context; `prefill_policy` None the default one. `prefix_caching` finds what
    traffic says that prompts share. `long_prefill_token_threshold` 0 sets no limit. `acceptance` is
    the assumed share of right drafts among those whose forerunners are right: one for all, or one
    for each of `speculative_tokens`, in order; `draft_slots` are vLLM's
    `max_num_new_slots_for_drafting`, 1 where a model drafts.

    Raises ConfigError for a number below 1, fewer than 2 blocks, block tokens that are no power of
    two, an unknown scheduling policy, shares that are none or not as many, and what vLLM refuses: a
    step with fewer tokens than requests, a threshold below 0, above the context or within drafts.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    kv_blocks_per_rank: int
    block_tokens: int
    max_model_len: int | None = None
    prefill_policy: str | None = None
    prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    long_prefill_token_threshold: int = 0
    speculative_tokens: int = 0
    draft_slots: int = 0
    acceptance: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("kv_blocks_per_rank", 2),
            ("block_tokens", 1),
            ("max_model_len", 1),
            ("long_prefill_token_threshold", 0),
            ("speculative_tokens", 0),
            ("draft_slots", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(name, value, f"at least {least}")
        if self.block_tokens & (self.block_tokens - 1):
            raise ConfigError("block_tokens", self.block_tokens, "a power of two")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs, {self.max_num_seqs}",
            )
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise ConfigError(
                "scheduling_policy", self.scheduling_policy, " or ".join(SCHEDULING_POLICIES)
            )
        if self.max_model_len and self.long_prefill_token_threshold > self.max_model_len:
            raise ConfigError(
                "long_prefill_token_threshold",
                self.long_prefill_token_threshold,
                f"at most max_model_len, {self.max_model_len}",
            )
        self._check_drafts()

    def _check_drafts(self) -> None:
        drafts = self.speculative_tokens
        if self.max_num_batched_tokens <= self.draft_slots:
            expected = "more than 1, of which the drafting model takes one"
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, expected)
        if 0 < self.long_prefill_token_threshold <= drafts:
            raise ConfigError(
                "long_prefill_token_threshold",
                self.long_prefill_token_threshold,
                f"0, or more than speculative_tokens, {drafts}",
            )
        if drafts and not self.acceptance:
            raise ConfigError("acceptance", self.acceptance, f"a share, or {drafts}")
        check_acceptance(self.acceptance, drafts)


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits(DraftOptions, PrefillOptions):
    """A rank's limits under vLLM's names; `max_model_len` None is the model's own.

    Defaults are those of `ultraserve serve`: requests and tokens as vLLM chooses them on its
    platform, blocks as the vendor's plugin has them (HARDWARE: vllm-neuron, block_size 32).
    """

    max_num_seqs: int = option(MAX_NUM_SEQS, "requests at once on a rank")
    max_num_batched_tokens: int = option(MAX_NUM_BATCHED_TOKENS, "new tokens of a rank in a step")
    block_tokens: int = option(32, "tokens of a KV block", "--block-size")
    max_model_len: int | None = None
    prefix_caching: bool = option(
        True,
        "compute beginnings that prompts of a trace share anew each time",
        "--no-prefix-caching",
    )
    scheduling_policy: SchedulingPolicy = option(
        "fcfs", "who goes first: by arrival, or by priority and then by arrival"
    )
    long_prefill_token_threshold: int = option(
        0, "tokens of one prompt in a step, while a rank has other requests (default: no limit)"
    )

    @property
    def batch(self) -> BatchLimits:
        """Those of a step."""
        return BatchLimits(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens
        )

    def with_kv(self, capacity_tokens: int) -> EngineLimits:
        """A rank's limits with so many tokens of KV, at least two blocks; raises ConfigError."""
        by_model = self.speculative_tokens > 0 and self.draft_model is not None
        given = asdict(self) | {"acceptance": self.shares, "draft_slots": int(by_model)}
        del given["draft_method"], given["draft_model"]
        return EngineLimits(
            kv_blocks_per_rank=max(2, capacity_tokens // self.block_tokens), **given
        )
