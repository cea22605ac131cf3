"""Makes a workload from a plan: finds words, measures and checks them.

All tokenizer calls are made here, before the run; but for recorded texts their number does not grow
with the requests.
"""

from itertools import accumulate
from typing import Final, cast
from zlib import crc32

import numpy as np

from loadgen.errors import OptionError
from loadgen.prompts.message_run import roles_of
from loadgen.prompts.piece_pool import PiecePool
from loadgen.prompts.prompt_check import check_prompts
from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.prompts.recorded_texts import recorded_ids, recorded_texts
from loadgen.prompts.single_token_words import find_single_token_words
from loadgen.prompts.template_cost import Roles, TemplateCost, chat_cost, completion_cost
from loadgen.prompts.token_run import token_run, word_run
from loadgen.prompts.wording import IdWording, TextWording, Wording
from loadgen.records.run_record import Api, PromptKind
from loadgen.records.tokenizer import Tokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.session_plan import WorkloadPlan

POOL_TOKENS_MIN: Final = 1 << 16  # prompts of usual lengths repeat nothing
POOL_TOKENS_MAX: Final = 1 << 20  # a longer prompt repeats its middle
SAMPLE_TOKENS: Final = 4  # of a message whose template is measured


async def make_workload(
    plan: WorkloadPlan,
    *,
    tokenizer: Tokenizer,
    name: str,
    kind: PromptKind,
    api: Api,
    seed: int,
    keep_replies: int = 0,
    served_history: bool = False,
) -> PromptedWorkload:
    """Give every piece of the plan its words, different for each class `name` of a seed.

    Raises LoadError for an unsuitable tokenizer, and the tokenizer's own errors.
    """
    if kind == "token-ids" and isinstance(tokenizer, WordTokenizer):
        expected = "server or a file beside --prompts token-ids"
        raise OptionError("--tokenizer", "words", expected=expected)
    wording = await _wording(plan, tokenizer, kind, seeds=(seed, crc32(name.encode())))
    orders = _orders(plan) if kind == "text" else {}
    cost = await _cost(tokenizer, kind, api, orders, wording)
    workload = PromptedWorkload(
        plan=plan,
        name=name,
        wording=wording,
        first_requests=(0, *accumulate(len(calls) for calls in plan.sessions)),
        merged=api != "chat",
        taken={} if cost.free else {roles: cost.by_message(roles) for roles in orders},
        keep_replies=keep_replies,
        served_history=served_history,
        words=_words(kind, tokenizer),
    )
    return await check_prompts(workload, tokenizer, kind=kind, api=api)


async def _wording(
    plan: WorkloadPlan, tokenizer: Tokenizer, kind: PromptKind, *, seeds: tuple[int, int]
) -> Wording:
    """Fill a pool from the seeds, and look up recorded texts."""
    chance = np.random.default_rng(seeds)
    longest = max(
        (segment.tokens for calls in plan.sessions for call in calls for segment in call.segments),
        default=0,
    )
    tokens = min(max(longest, POOL_TOKENS_MIN), POOL_TOKENS_MAX)
    if kind == "token-ids":
        text_seed = int(chance.integers(1 << 32))
        run = await token_run(tokenizer, seed=text_seed, tokens=tokens)
        return IdWording(
            pool=PiecePool.of(run, chance=chance), recorded=await recorded_ids(plan, tokenizer)
        )
    words = await find_single_token_words(tokenizer)
    drawn = word_run(words, chance=chance, tokens=tokens)
    return TextWording(
        pool=PiecePool.of(drawn, chance=chance),
        joiner=words.joiner,
        told_apart=words.told_apart,
        recorded=await recorded_texts(plan, tokenizer),
    )


async def _cost(
    tokenizer: Tokenizer, kind: PromptKind, api: Api, orders: dict[Roles, int], wording: Wording
) -> TemplateCost:
    def sample(place: int) -> str:
        return cast(str, wording.made(place, SAMPLE_TOKENS))

    if kind == "token-ids":
        return TemplateCost()
    if api == "chat":
        return await chat_cost(tokenizer, orders, sample=sample, tokens=SAMPLE_TOKENS)
    return await completion_cost(tokenizer, sample=sample(0), tokens=SAMPLE_TOKENS)


def _orders(plan: WorkloadPlan) -> dict[Roles, int]:
    """Count the calls by the roles in their prompts; a warm-up's is included."""
    orders: dict[Roles, int] = {("user",): 0}
    for calls in plan.sessions:
        for call in calls:
            roles = roles_of(call.segments)
            orders[roles] = orders.get(roles, 0) + 1
    return orders


def _words(kind: PromptKind, tokenizer: Tokenizer) -> str:
    if kind == "token-ids":
        return f"token ids, of exact length by {tokenizer.words}"
    if isinstance(tokenizer, WordTokenizer):
        return f"text, its length in {tokenizer.words}"
    return f"text, of exact length by {tokenizer.words}"
