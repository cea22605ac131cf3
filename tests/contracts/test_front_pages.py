"""README and ARCHITECTURE.md stay short, and the site's navigation has every page."""

import re

from tests.contracts.markdown_pages import ROOT, pages

README_LINES_MAX = 150
ARCHITECTURE_LINES_MAX = 120  # two screens
GLOSSARY_WORDS_MAX = 30

PAGES = pages()


def test_readme_is_read_in_one_go() -> None:
    assert len(PAGES["README.md"].text.splitlines()) <= README_LINES_MAX


def test_architecture_fits_two_screens_with_one_picture() -> None:
    page = PAGES["ARCHITECTURE.md"]

    assert len(page.text.splitlines()) <= ARCHITECTURE_LINES_MAX
    assert len(page.blocks("mermaid")) == 1


def test_the_glossary_is_short_and_alphabetical() -> None:
    words = re.findall(r"\*([^*]+)\*: ", PAGES["ARCHITECTURE.md"].text.partition("\n## Words\n")[2])

    assert 0 < len(words) <= GLOSSARY_WORDS_MAX
    assert words == sorted(words, key=str.lower)


def test_the_site_s_navigation_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]

    assert sorted(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == sorted(PAGES)


def test_every_block_of_a_guide_says_what_it_is() -> None:
    unnamed = [
        name
        for name, page in PAGES.items()
        if name == "README.md" or name.startswith("deploy/guides/")
        for language, _ in re.findall(r"^```(\w*)\n(.*?)^```$", page.text, re.DOTALL | re.MULTILINE)
        if not language
    ]

    assert unnamed == []
