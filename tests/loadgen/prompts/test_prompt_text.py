from itertools import islice

import pytest

from loadgen.prompts.prompt_text import paragraphs


def text(seed: int, count: int = 500) -> str:
    return "".join(islice(paragraphs(seed), count))


def test_one_seed_gives_one_text_and_another_seed_another() -> None:
    assert text(1) == text(1)
    assert text(1) != text(2)


@pytest.mark.long
def test_every_blank_of_a_template_is_filled() -> None:
    # What is left in braces is code's own, never a mark like {n}.
    assert not any(f"{{{mark}}}" in text(3, 2_000) for mark in "nmNvadpy")


def test_a_paragraph_is_several_words_of_plain_ascii() -> None:
    for paragraph in islice(paragraphs(4), 2_000):
        assert len(paragraph.split()) >= 4
        assert paragraph.isascii()
