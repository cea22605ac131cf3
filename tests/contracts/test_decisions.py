"""DECISIONS.md's index has every decision once, and what was replaced is marked at both places."""

import re

from tests.contracts.markdown_pages import ROOT

TEXT = (ROOT / "DECISIONS.md").read_text(encoding="utf-8")
INDEX = TEXT.partition("## Index by area\n")[2].partition("\n## ")[0]
HEADS = {int(number) for number in re.findall(r"^## (\d+)\. ", TEXT, re.MULTILINE)}


def test_decisions_are_numbered_without_a_gap() -> None:
    assert set(range(1, len(HEADS) + 1)) == HEADS


def test_the_index_has_every_decision_once() -> None:
    listed = [int(number) for number in re.findall(r"^- \[(\d+)\]", INDEX, re.MULTILINE)]

    assert len(listed) == len(set(listed))
    assert set(listed) == HEADS


def test_a_replaced_decision_is_marked_in_the_index_and_at_its_own_head() -> None:
    in_index = {
        int(number): re.findall(r"\[(\d+)\]", mark)
        for number, mark in re.findall(r"^- \[(\d+)\].*\*\((replaced .*)\)\*$", INDEX, re.MULTILINE)
    }
    at_head = {
        int(number): re.findall(r"\d+", mark)
        for number, mark in re.findall(
            r"^## (\d+)\. .*\n\n\*Replaced (?:in part )?by ((?:\d+|, | and )+)", TEXT, re.MULTILINE
        )
    }

    assert in_index
    assert in_index == at_head
    assert {int(later) for marks in in_index.values() for later in marks} <= HEADS
