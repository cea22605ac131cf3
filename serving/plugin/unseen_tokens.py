"""Prompts' tokens that no client sees, left out of vLLM's counts: another engine makes them again.

vLLM counts a generated token where its output is processed. With prefill and decode
apart, counters of both engines would have the first token of each request twice.
"""

from typing import Any
from weakref import WeakSet

from serving.plugin.kv_transfer_params import has_unseen_token


def leave_out_unseen_tokens(engine: Any) -> None:
    """Wrap two methods of the output processor of vLLM's `engine`, an AsyncLLM, if other engines
    may have its KV.
    """
    if engine.vllm_config.kv_transfer_config is None:
        return
    processor = engine.output_processor
    add, count = processor.add_request, processor._update_stats_from_output
    unseen: WeakSet[Any] = WeakSet()  # vLLM's states of such requests

    def add_request(request: Any, *more: Any, **named: Any) -> None:
        add(request, *more, **named)
        if has_unseen_token(request):
            unseen.add(processor.request_states[request.request_id])

    def update_stats(state: Any, output: Any, timestamp: Any, stats: Any) -> None:
        count(state, output, timestamp, stats)
        if stats is not None and state in unseen:
            tokens = len(output.new_token_ids)
            stats.num_generation_tokens -= tokens
            state.stats.num_generation_tokens -= tokens

    processor.add_request, processor._update_stats_from_output = add_request, update_stats
