import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.data import SMALL_MOE_DIR
from loadgen.errors import LoadError
from loadgen.prompts.template_cost import (
    Roles,
    TemplateCost,
    chat_cost,
    completion_cost,
    turn_ends,
)
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer

ROLES = st.lists(st.sampled_from(["system", "user", "assistant"]), min_size=1, max_size=8)


class Template(WordTokenizer):
    """A template of 3 words for every chat, 5 for every message, and one word of BOS."""

    async def prompt_tokens(self, text: str) -> int:
        return 1 + await super().prompt_tokens(text)

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        return 3 + 5 * len(messages) + await super().chat_tokens(messages)


class Forgetful(WordTokenizer):
    """A tokenizer that counts no chat."""

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        return 0 * len(messages)


def measured(orders: Sequence[Roles], tokenizer: WordTokenizer | None = None) -> TemplateCost:
    return asyncio.run(
        chat_cost(tokenizer or Template(), orders, sample=lambda place: f"a b c{place}", tokens=3)
    )


def test_each_turn_pays_what_it_adds() -> None:
    roles: Roles = ("system", "user", "assistant", "user")
    cost = measured([roles])

    assert cost.total(roles) == 3 + 4 * 5
    assert cost.by_message(roles) == (0, 3 + 2 * 5, 0, 2 * 5)
    assert cost.by_message(roles[:2]) == (0, 3 + 2 * 5)


def test_a_prompt_without_a_word_of_the_user_pays_at_its_end() -> None:
    assert measured([("system", "assistant")]).by_message(("system", "assistant")) == (0, 13)


@given(roles=ROLES.map(tuple))
def test_what_is_taken_is_the_total_and_the_same_in_each_later_turn(roles: Roles) -> None:
    cost = measured([roles])
    ends = turn_ends(roles)

    assert sum(cost.by_message(roles)) == cost.total(roles) == 3 + 5 * len(roles)
    for end in ends:
        assert cost.by_message(roles)[:end] == cost.by_message(roles[:end])


def test_a_completion_pays_its_special_tokens_once_whoever_speaks() -> None:
    cost = asyncio.run(completion_cost(Template(), sample="a b c", tokens=3))

    assert cost.by_message(("system", "user", "assistant", "user")) == (0, 1, 0, 0)
    assert not cost.free
    assert asyncio.run(completion_cost(WordTokenizer(), sample="a b", tokens=2)).free


def test_the_bundled_model_pays_what_its_template_writes() -> None:
    roles: Roles = ("user", "assistant", "user")
    tokenizer = LocalTokenizer(SMALL_MOE_DIR)
    cost = asyncio.run(chat_cost(tokenizer, [roles], sample=lambda _: "and not", tokens=2))
    written = [
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n<|im_end|>\n" * 2
        + "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n",
    ]
    once, thrice = (len(ids) for ids in asyncio.run(tokenizer.encode(written)))

    assert cost.by_message(roles) == (once, 0, thrice - once)


def test_a_tokenizer_that_loses_the_contents_is_refused() -> None:
    with pytest.raises(LoadError, match="fewer tokens than its contents have: 0 for 1 messages"):
        measured([("user",)], Forgetful())
