"""Endless plain English and code, from which prompts are cut.

Made by a seeded choice of words, so that no page repeats and no author's writing is shipped. It
means nothing; a tokenizer splits it as ordinary text.
"""

import random
import re
from collections.abc import Iterator
from typing import Final

_NOUNS: Final = (
    "answer batch bridge camera chapter city clock cloud colour country crew desk door engine "
    "error evening family farm field figure forest garden harbour history hour house idea island "
    "journey key lake language letter library light line machine map market memory message mill "
    "morning mountain network number office page paper path person picture plan price question "
    "queue rain reason record report river road rule school season sentence server ship signal "
    "station storm story street summer system table teacher team test theory ticket town train "
    "tree value village voice wall water wheel window winter word worker world writer year"
)
_VERBS: Final = (
    "accepts answers avoids becomes breaks brings builds carries changes checks closes copies "
    "counts crosses describes draws explains fills finds follows gives holds improves keeps knows "
    "leaves makes measures meets moves needs opens orders paints passes reaches reads remembers "
    "repairs replaces returns sees sells sends serves shows starts stops supports takes teaches "
    "tests touches turns understands uses visits waits wants writes"
)
_ADJECTIVES: Final = (
    "able ancient better blue bright broken careful cheap clean clear cold common deep different "
    "early easy empty exact famous fast final free full general good great green heavy high "
    "honest important large late little local long low modern narrow new next old open ordinary "
    "patient plain private public quiet ready real red rich short simple slow small soft strange "
    "strong sudden tall useful usual warm whole wide wooden young"
)
_PLACES: Final = [
    "near the {n}",
    "behind the {a} {n}",
    "in the {n}",
    "under a {a} {n}",
    "before the {a} {n}",
    "after the {n}",
    "with a {n}",
    "without any {n}",
    "on the other side of the {n}",
    "at the end of the {a} {n}",
]
_SENTENCES: Final = [
    "The {a} {n} {v} the {n} {p}.",
    "A {n} {v} every {a} {n}, and the {n} {v} it.",
    "When the {n} {v} the {a} {n}, nobody {v} the {n} {p}.",
    "Why is the {n} {p} so {a}?",
    "In {y} the {n} of the {a} {n} was {a} and {a}.",
    "She says that the {n} {v} {d} {a} things {p}.",
    "{p}, the {a} {n} {v} a {n}.",
    "He asked for {d} of them; the {n} {v} only the {a} ones.",
    "There is no {n} {p}, but one {a} {n} {v} the {n}.",
    "Please write about a {n} that {v} a {a} {n}.",
]
_STATEMENTS: Final = [
    "def {a}_{n}({n}, {m}={d}):\n    return {m} + len({n}) * {d}\n",
    "for {n} in {m}s:\n    if {n}.{a} > {d}:\n        total += {n}.{m}\n",
    'class {N}:\n    """A {a} {n}."""\n\n    {m}: int = {d}\n',
    "{n} = [{m}.{a}() for {m} in self.{n}s[{d}:]]\n",
    "assert {n}_{m} == {d}, 'the {n} is not {a}'\n",
    "SELECT {n}, count(*) FROM {m} WHERE {a} >= {d} GROUP BY {n};\n",
    "if (({n} & 0x{d}) != 0) { {m}->{a} = {d}; }\n",
]
_STATEMENT_SHARE: Final = 0.15  # assumed: a chat is mostly prose
_SENTENCES_IN_A_PARAGRAPH: Final = 6
_WORD: Final = re.compile("[A-Za-z]+")


def paragraphs(seed: int) -> Iterator[str]:
    """Yield paragraphs without end, the same for a seed."""
    return _Writer(random.Random(seed)).paragraphs()


def prose_words(seed: int) -> Iterator[str]:
    """Yield words of prose, without code, figures and punctuation."""
    writer = _Writer(random.Random(seed))
    while True:
        yield from _WORD.findall(writer.prose())


class _Writer:
    """Fills templates with random words. A mark is a letter in braces."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        nouns = _NOUNS.split()
        self._words = {
            "n": nouns,
            "m": nouns,
            "N": [noun.title() for noun in nouns],
            "v": _VERBS.split(),
            "a": _ADJECTIVES.split(),
            "d": [str(number) for number in range(1, 1_000)],
            "y": [str(year) for year in range(1800, 2031)],
        }

    def paragraphs(self) -> Iterator[str]:
        chance = self._chance
        while True:
            if chance.random() < _STATEMENT_SHARE:
                yield self._filled(chance.choice(_STATEMENTS)) + "\n"
            else:
                yield self.prose() + "\n\n"

    def prose(self) -> str:
        """Write one paragraph of sentences."""
        count = self._chance.randint(1, _SENTENCES_IN_A_PARAGRAPH)
        sentences = [self._filled(self._chance.choice(_SENTENCES)) for _ in range(count)]
        return " ".join(text[0].upper() + text[1:] for text in sentences)

    def _filled(self, template: str) -> str:
        """Replace each mark by a random word; a place first, for it has marks itself."""
        pieces = template.replace("{p}", self._chance.choice(_PLACES)).split("{")
        return pieces[0] + "".join(self._filled_mark(piece) for piece in pieces[1:])

    def _filled_mark(self, piece: str) -> str:
        mark, closed, rest = piece.partition("}")
        if not closed or mark not in self._words:
            return "{" + piece  # a brace of the code's own
        return self._chance.choice(self._words[mark]) + rest
