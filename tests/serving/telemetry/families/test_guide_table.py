"""The guide lists each family, once, as it is."""

import pytest

from serving.telemetry.families.guide_table import BEGIN, FAMILIES, GUIDE, with_tables


def test_the_guide_s_tables_are_those_of_the_families() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert guide == with_tables(guide), "python -m serving.telemetry.families.guide_table"
    for family in FAMILIES:
        assert guide.count(f"| `{family.sample}` | {family.kind} |") == 1


def test_a_guide_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="families: end"):
        with_tables(f"words\n{BEGIN}\nmore words")


def test_help_is_a_sentence_without_a_bar_that_would_end_a_cell() -> None:
    assert not [family.name for family in FAMILIES if "|" in family.help]
