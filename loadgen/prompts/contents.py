"""Makes a workload from a plan: finds words, measures and checks them.

All tokenizer calls are made here, before the run; but for recorded texts their number does not grow
with the requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, cast
from zlib import crc32

import numpy as np

from loadgen.errors import LoadError, OptionError
from loadgen.prompts.message_run import roles_of
from loadgen.prompts.piece_pool import PiecePool
from loadgen.prompts.prompt_check import check_prompts
from loadgen.prompts.prompt_text import paragraphs
from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.prompts.single_token_words import SingleTokenWords, find_single_token_words
from loadgen.prompts.template_cost import Roles, TemplateCost, chat_cost, completion_cost
from loadgen.prompts.wording import IdWording, Recorded, TextWording, TokenIds, Wording
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
        raise OptionError("--tokenizer", "words", "server or a file beside --prompts token-ids")
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


BATCH_TEXTS = 4_096  # split at once


async def recorded_ids(plan: WorkloadPlan, tokenizer: Tokenizer) -> Mapping[Recorded, TokenIds]:
    """Token ids of every recorded text of the plan."""
    wanted = _wanted(plan)
    texts = list(dict.fromkeys(text for text, _ in wanted))
    ids = dict(zip(texts, await _split(tokenizer, texts), strict=True))
    return {(text, tokens): ids[text][:tokens] for text, tokens in wanted}


async def recorded_texts(plan: WorkloadPlan, tokenizer: Tokenizer) -> Mapping[Recorded, str]:
    """The text of each recorded text's first tokens."""
    wanted = _wanted(plan)
    texts = list(dict.fromkeys(text for text, _ in wanted))
    ids = dict(zip(texts, await _split(tokenizer, texts), strict=True))
    cut = [each for each in wanted if each[1] < len(ids[each[0]])]
    found = {each: each[0] for each in wanted}
    found |= zip(
        cut, await tokenizer.decode([ids[text][:tokens] for text, tokens in cut]), strict=True
    )
    return found


def _wanted(plan: WorkloadPlan) -> list[Recorded]:
    found: dict[Recorded, None] = {}
    for calls in plan.sessions:
        for call in calls:
            for segment in call.segments:
                if segment.text is not None:
                    found[segment.text, segment.tokens] = None
    return list(found)


async def _split(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenIds]:
    ids: list[TokenIds] = []
    for first in range(0, len(texts), BATCH_TEXTS):
        ids += await tokenizer.encode(texts[first : first + BATCH_TEXTS])
    return ids


PIECE_CHARACTERS: Final = 1 << 16  # of text, split at once
CHARACTERS_PER_TOKEN: Final = 4.0  # of English; a wrong guess costs one more round


async def token_run(tokenizer: Tokenizer, *, seed: int, tokens: int) -> tuple[int, ...]:
    """Split enough of the seed's text for `tokens` token ids.

    Without special tokens: a window may be cut anywhere. Raises LoadError for a tokenizer that
    returns no tokens.
    """
    text = paragraphs(seed)
    run: list[int] = []
    while len(run) < tokens:
        missing = (tokens - len(run)) * CHARACTERS_PER_TOKEN
        pieces = [_piece(text) for _ in range(int(missing / PIECE_CHARACTERS) + 1)]
        split = await tokenizer.encode(pieces)
        if not any(split):
            raise LoadError(f"{tokenizer.words} returned no tokens for a text")
        for ids in split:
            run += ids
    return tuple(run[:tokens])


def word_run(
    words: SingleTokenWords, *, chance: np.random.Generator, tokens: int
) -> tuple[str, ...]:
    """Draw `tokens` of the words, in any order."""
    drawn = chance.integers(len(words.words), size=tokens)  # [tokens]
    return tuple(words.words[number] for number in drawn.tolist())


def _piece(text: Iterator[str]) -> str:
    parts: list[str] = []
    characters = 0
    while characters < PIECE_CHARACTERS:
        part = next(text)
        parts.append(part)
        characters += len(part)
    return "".join(parts)
