"""Limits of an engine's schedulers."""

from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.traffic.engine_limits import EngineLimits

GOOD = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "kv_blocks_per_rank": 2,
    "block_tokens": 16,
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
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(name: str, value: int) -> None:
    assert EngineLimits(**GOOD).max_model_len is None
    changed: dict[str, Any] = GOOD | {name: value}
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        EngineLimits(**changed)
