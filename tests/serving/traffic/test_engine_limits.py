"""Limits of an engine's schedulers."""

import re
from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.traffic.engine_limits import EngineLimits

GOOD = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "kv_blocks_per_rank": 2,
    "block_tokens": 16,
    "max_model_len": 512,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", 7),
        ("max_num_seqs", 0),
        ("kv_blocks_per_rank", 1),
        ("block_tokens", 0),
        ("block_tokens", 24),
        ("max_model_len", 0),
        ("scheduling_policy", "lifo"),
        ("long_prefill_token_threshold", -1),
        ("long_prefill_token_threshold", 513),
        ("speculative_tokens", -1),
        ("acceptance", (0.5,)),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    assert EngineLimits(**GOOD).max_model_len == 512
    changed: dict[str, Any] = GOOD | {name: value}
    with pytest.raises(ConfigError, match=re.escape(f"{name}={value}")):
        EngineLimits(**changed)


@pytest.mark.parametrize(
    ("acceptance", "threshold"), [((), 0), ((0.5, 0.5), 0), ((1.5,), 0), ((0.5,), 3)]
)
def test_drafts_need_shares_and_room(acceptance: tuple[float, ...], threshold: int) -> None:
    EngineLimits(**GOOD, speculative_tokens=3, acceptance=(0.5,), long_prefill_token_threshold=4)
    with pytest.raises(ConfigError):
        EngineLimits(
            **GOOD,
            speculative_tokens=3,
            acceptance=acceptance,
            long_prefill_token_threshold=threshold,
        )
