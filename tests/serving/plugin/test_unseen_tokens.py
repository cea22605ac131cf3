"""Tokens that another engine makes again, in what vLLM's output processor counts."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats

from serving.plugin.unseen_tokens import leave_out_unseen_tokens
from tests.serving.plugin.core_request import core_request

WITH_KV = KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_producer")


def processor(config: KVTransferConfig | None) -> OutputProcessor:
    made = OutputProcessor(None, log_stats=True)
    vllm_config = SimpleNamespace(kv_transfer_config=config)
    engine: Any = SimpleNamespace(output_processor=made, vllm_config=vllm_config)
    leave_out_unseen_tokens(engine)
    return made


def asked(name: str, max_tokens: int, **kv: bool) -> EngineCoreRequest:
    extra = {"kv_transfer_params": kv} if kv else None
    params = SamplingParams(max_tokens=max_tokens, detokenize=False, extra_args=extra)
    return core_request(name, [5, 6, 7], params)


@pytest.mark.parametrize(("config", "left_out"), [(WITH_KV, 1), (None, 0)])
def test_a_token_that_is_made_elsewhere_again_is_not_generated_here(
    config: KVTransferConfig | None, left_out: int
) -> None:
    counts = processor(config)
    counts.add_request(asked("prompt", 1, do_remote_decode=True), None)
    counts.add_request(asked("one", 1), None)
    counts.add_request(asked("more", 4, do_remote_decode=True), None)
    stats = IterationStats()
    outputs = [
        EngineCoreOutput(
            request_id=name, new_token_ids=list(range(tokens)), finish_reason=FinishReason.LENGTH
        )
        for name, tokens in (("prompt", 1), ("one", 1), ("more", 4))
    ]
    counts.process_outputs(outputs, 1.0, stats)
    assert stats.num_generation_tokens == 6 - left_out
    of_each = [each.num_generation_tokens for each in stats.finished_requests]
    assert of_each == [1 - left_out, 1, 4]
    assert len(stats.time_to_first_tokens_iter) == 3
