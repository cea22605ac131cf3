"""Words of one token each in any order: text of an exact length.

A text of n such words, and each of its beginnings, has one token per word. This is verified: texts
with every ordered pair of words are tokenised, and words that are not their own token dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

from loadgen.errors import LoadError
from loadgen.prompts.prompt_text import prose_words
from loadgen.records.tokenizer import Tokenizer

# Function words beside those of `prompt_text`: small vocabularies hold few others.
_COMMON: Final = (
    "about after all also an are as at back be because been but by can come could day do down even "
    "first from get give go good had has have her him his how I if into is its just know like look "
    "made make may me more most my not now of off one or our out over part people put said see she "
    "so some take than them then there they think this through to two up us was way we well were "
    "what which who will work would you your"
)
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
SAMPLE_WORDS: Final = 8_000  # of prose: by then its writer has used every word it has
WORDS_MAX: Final = 256  # the proof takes the square of them
WORDS_MIN: Final = 16  # four bits each: 2**32 beginnings of eight words
PROOF_WORDS: Final = 2_048  # in one text, far below a context


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokenWords:
    """`words` of one token each, and the `joiner` between any two of them.

    `told_apart` is False for a tokenizer whose ids mean nothing: only the count is verified.
    """

    words: tuple[str, ...]
    joiner: str
    told_apart: bool = True


async def find_single_token_words(tokenizer: Tokenizer) -> SingleTokenWords:
    """Find English words, or letters for a tokenizer of bytes; raises LoadError if neither."""
    english = list(dict.fromkeys([*islice(prose_words(0), SAMPLE_WORDS), *_COMMON.split()]))
    families = ((" ", english), ("", list(_LETTERS)))
    for told_apart, (joiner, candidates) in product((True, False), families):
        words = await _single(tokenizer, joiner, candidates, told_apart=told_apart)
        while len(words) >= WORDS_MIN:
            wrong = await _wrong(tokenizer, joiner, words)
            if not wrong:
                return SingleTokenWords(words=tuple(words), joiner=joiner, told_apart=told_apart)
            words = {word: number for word, number in words.items() if word not in wrong}
            if not told_apart:
                break  # a count does not say which word is wrong
    raise LoadError(
        f"no text of an exact length can be made by {tokenizer.words}: it has fewer than "
        f"{WORDS_MIN} words of one token; --prompts token-ids needs none"
    )


async def _single(
    tokenizer: Tokenizer, joiner: str, words: Sequence[str], *, told_apart: bool
) -> dict[str, int | None]:
    """Words of one token at the start and after themselves, each with the latter's token id.

    Of words with the same token (unknown ones, or upper and lower case) one is kept; without
    `told_apart` all are, without ids.
    """
    split = await tokenizer.encode([word + joiner + word for word in words])
    single = [(word, ids[1]) for word, ids in zip(words, split, strict=True) if len(ids) == 2]
    if not told_apart:
        return {word: None for word, _ in single[:WORDS_MAX]}
    found: dict[int, str] = {}
    for word, number in single:
        found.setdefault(number, word)
    return {word: number for number, word in list(found.items())[:WORDS_MAX]}


async def _wrong(tokenizer: Tokenizer, joiner: str, words: dict[str, int | None]) -> set[str]:
    """Words that are not their own token in a text with every ordered pair of words."""
    run = every_pair(list(words))
    parts = [run[at : at + PROOF_WORDS + 1] for at in range(0, len(run) - 1, PROOF_WORDS)]
    wrong: set[str] = set()
    for part, ids in zip(
        parts, await tokenizer.encode([joiner.join(part) for part in parts]), strict=True
    ):
        wanted = [words[word] for word in part]
        places = range(1, min(len(ids), len(part)))
        apart = next((at for at in places if wanted[at] not in (None, ids[at])), None)
        if apart is not None or len(ids) != len(part):
            wrong.add(part[-1 if apart is None else apart])
    return wrong


def every_pair(words: Sequence[str]) -> list[str]:
    """Order words so that each ordered pair, also of a word with itself, stands together once.

    The de Bruijn sequence of order 2, from its Lyndon words in order, closed by its first word.
    """
    run: list[str] = []
    for place, word in enumerate(words):
        run.append(word)
        for other in words[place + 1 :]:
            run += (word, other)
    return [*run, words[0]]
