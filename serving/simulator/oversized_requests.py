"""Requests that an engine refuses, as they would wait for ever."""

import numpy as np

from emulator.arrays import Int64s
from emulator.errors import ConfigError
from loadgen.workloads.traffic import Traffic
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.traffic.engine_limits import EngineLimits


def refuse_what_never_fits(deployment: SimulatedDeployment, traffic: Traffic) -> None:
    """Raise ConfigError for requests that would wait for ever; an engine refuses them."""
    if not len(traffic):
        return
    limits, model = deployment.limits, deployment.cost_model.model
    max_model_len = limits.max_model_len or model.max_context_tokens
    total_tokens = traffic.prompt_tokens + traffic.output_tokens  # [requests]
    longest = int(total_tokens.argmax())
    tokens = int(total_tokens[longest])
    if tokens > max_model_len:
        raise ConfigError(
            field="max_model_len",
            value=max_model_len,
            expected=f"at least {tokens}, the tokens of request {longest} and its reply",
        )
    starts_padded = deployment.prefill is not None
    needed = _blocks_at_most(traffic, limits, max_model_len, starts_padded=starts_padded)
    most = int(needed.argmax())
    if needed[most] > limits.kv_blocks_per_rank:
        expected = f"at least {needed[most]}, for the {total_tokens[most]} tokens of request {most}"
        if limits.speculative_tokens:
            expected += " and its drafts"
        raise ConfigError("kv_blocks_per_rank", limits.kv_blocks_per_rank, expected)


def _blocks_at_most(
    traffic: Traffic, limits: EngineLimits, max_model_len: int, *, starts_padded: bool
) -> Int64s:
    """KV blocks that each request may need alone on a rank, vLLM's own one included: [requests].

    The last token's keys and values are never written. A step of K drafts has blocks for the K that
    it verifies, where a token came before it, and for the K to be made after them. One that
    `starts_padded`, as its prompt's KV has come, has room for K in its first step, too.
    """
    written = traffic.prompt_tokens + traffic.output_tokens - 1
    ahead = limits.speculative_tokens * (1 + (starts_padded | (traffic.output_tokens > 1)))
    blocks: Int64s = -(-np.minimum(written + ahead, max_model_len) // limits.block_tokens) + 1
    return blocks
