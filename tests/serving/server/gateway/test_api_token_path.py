"""A direct stream's token costs the API's process a share of what vLLM's own way costs it."""

import pytest

from tests.benchmarks.api_token_path import measured, sampled_server
from tests.benchmarks.sampled_stacks import SampledPlainStacks, SampledStacks

SHARE_MAX = 0.6
"""Measured: 0.3 to 0.4, of completions and of chats. A share is much the same on a busy host."""


@pytest.mark.slow
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_direct_stream_s_token_is_cheaper(api: str) -> None:
    with sampled_server(SampledStacks) as server:
        direct = measured(server, api)
    with sampled_server(SampledPlainStacks) as server:
        plain = measured(server, api)
    assert direct.us < SHARE_MAX * plain.us, f"{direct.line()}\n{plain.line()}"
    assert "direct streams" in direct.parts_us
    assert "direct streams" not in plain.parts_us
