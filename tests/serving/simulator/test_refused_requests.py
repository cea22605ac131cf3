"""Requests that an engine would refuse, since no rank could ever serve them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.partition import Partition
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=1, ep=1),
    schedulers=SchedulerLimits(block_tokens=16),
)
LIMITS = DEPLOYMENT.limits


def asked(prompt: int, output: int) -> Traffic:
    """A small request, and this one."""
    return Traffic(
        arrival_s=np.zeros(2),
        prompt_tokens=np.array([9, prompt]),
        output_tokens=np.array([9, output]),
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_model_len": 64}, "max_model_len=64: expected at least 65, the tokens of request 1"),
        ({"kv_blocks_per_rank": 4}, "kv_blocks_per_rank=4: expected at least 5, for the 65 tokens"),
        ({"prefill_policy": "fast"}, "prefill_policy=fast: expected none, staggered"),
    ],
)
def test_what_an_engine_would_refuse_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(replace(DEPLOYMENT, limits=replace(LIMITS, **changed)), asked(60, 5))


def test_a_context_longer_than_the_model_s_is_refused() -> None:
    tokens = DEPLOYMENT.cost_model.model.max_context_tokens
    with pytest.raises(ConfigError, match=f"max_model_len={tokens}"):
        simulate(DEPLOYMENT, asked(tokens, 1))
