"""The memory of a rank's chips, kept by value: each request's tokens, blocks, and KV.

A slow, obvious stand-in for a rank: a position's key and value are the token computed there, so
that reading a block with another text, or none, shows at once.
"""

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput

from tests.serving.plugin.engine_config import BLOCK_TOKENS
from tests.serving.plugin.lockstep_workload import chosen_token

NOTHING = -1


class RankMemory:
    """The requests and KV pool of one rank, which samples `chosen_token`."""

    def __init__(self, blocks: int) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.kv = np.full((blocks, BLOCK_TOKENS), NOTHING)
        self._finished: set[str] = set()

    def lose(self) -> None:
        """Forget everything, like a new chip in place of a lost one."""
        self.tokens.clear()
        self.tables.clear()
        self.kv[:] = NOTHING

    def run(self, decision: SchedulerOutput) -> dict[str, int]:
        """Compute a decision; returns the sampled tokens. Raises when something is missing."""
        self._finished |= (
            decision.finished_req_ids
        )  # told with the next tokens, as the executor does
        if not decision.total_num_scheduled_tokens:
            return {}
        first = self._take_over(decision)
        spans = {
            name: (first[name], first[name] + count)
            for name, count in decision.num_scheduled_tokens.items()
        }
        for name, (start, end) in spans.items():
            assert end <= len(self.tokens[name]), f"{name}: tokens that the chips do not know"
            for position in range(start, end):
                self.kv[self._slot(name, position)] = self.tokens[name][position]
        sampled = {}
        for name, (_, end) in spans.items():
            context = [self.kv[self._slot(name, position)] for position in range(end)]
            assert context == self.tokens[name][:end], f"{name}: KV of another text"
            if end == len(self.tokens[name]):
                sampled[name] = chosen_token(name, end)
                self.tokens[name].append(sampled[name])
        return sampled

    def _take_over(self, decision: SchedulerOutput) -> dict[str, int]:
        for name in self._finished:
            self.tokens.pop(name, None)
            self.tables.pop(name, None)
        self._finished = set()
        first = {}
        for data in decision.scheduled_new_reqs:
            self.tokens[data.req_id] = list(data.prefill_token_ids or data.prompt_token_ids or ())
            self.tables[data.req_id] = list(data.block_ids[0])
            first[data.req_id] = data.num_computed_tokens
        cached = decision.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            kept = [] if name in cached.resumed_req_ids else self.tables[name]
            self.tables[name] = [*kept, *(blocks[0] if blocks else ())]
            first[name] = computed
        return first

    def _slot(self, name: str, position: int) -> tuple[int, int]:
        return self.tables[name][position // BLOCK_TOKENS], position % BLOCK_TOKENS
