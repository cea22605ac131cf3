"""Draft tokens by n-grams: what followed the first time that a text ended as it does now.

vLLM's own search, after each step, for each request that decodes; drafts lie in the request, where
vLLM's scheduler looks for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens

from serving.plugin.request_place import NOWHERE, RequestPlace

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import DraftTokenIds


class NgramDrafts:
    """Looks for the longest of `min_tokens` to `max_tokens` last tokens; drafts up to `count`, 0
    for none.
    """

    def __init__(self, *, min_tokens: int, max_tokens: int, count: int, max_model_len: int) -> None:
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._count = count
        self._max_model_len = max_model_len

    @classmethod
    def of(cls, vllm_config: "VllmConfig") -> Self:
        """Those of an engine's `--speculative-config`; none where chips draft."""
        speculative = vllm_config.speculative_config
        if speculative is None or speculative.method != "ngram":
            return cls(min_tokens=0, max_tokens=0, count=0, max_model_len=0)
        assert speculative.prompt_lookup_min is not None
        assert speculative.prompt_lookup_max is not None
        drafts = cls(
            min_tokens=speculative.prompt_lookup_min,
            max_tokens=speculative.prompt_lookup_max,
            count=speculative.num_speculative_tokens,
            max_model_len=vllm_config.model_config.max_model_len,
        )
        drafts.after([0])  # compiles the search
        return drafts

    def propose(self, ranks: Iterable[Scheduler]) -> None:
        """Draft for every request that decodes, whose grammar and log-probabilities allow it."""
        for rank in ranks if self._count else ():
            for request in rank.running:
                if may_draft(request):
                    request.spec_token_ids = self.after(list(request.all_token_ids))

    def after(self, tokens: list[int]) -> list[int]:
        """The draft after `tokens`; empty where no end of them was there before."""
        found = _find_longest_matched_ngram_and_propose_tokens(
            np.array(tokens, dtype=np.int32),
            self._min_tokens,
            self._max_tokens,
            self._max_model_len,
            self._count,
        )
        drafts: list[int] = found.tolist()
        return drafts


def may_draft(request: Request) -> bool:
    """Whether it runs and decodes, chooses freely, and reports no log-probabilities."""
    params = request.sampling_params
    return (
        request.status == RequestStatus.RUNNING
        and request.num_computed_tokens >= request.num_tokens - 1
        and request.num_output_tokens > 0
        and not request.use_structured_output
        and params is not None
        and params.num_logprobs is None
    )


def give_guesses(
    ranks: Sequence[Scheduler], places: Mapping[str, RequestPlace], guessed: "DraftTokenIds"
) -> None:
    """Give requests that decode what chips `guessed`; not those that have moved meanwhile."""
    for request_id, guesses in zip(guessed.req_ids, guessed.draft_token_ids, strict=True):
        place = places.get(request_id)
        if place is None or place.rank == NOWHERE:
            continue
        request = ranks[place.rank].requests.get(request_id)
        if request is not None and may_draft(request):
            request.spec_token_ids = guesses
