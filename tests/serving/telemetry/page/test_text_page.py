"""The text format, read back by prometheus_client's own parser."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from emulator.errors import ConfigError
from serving.telemetry.families.family import Family
from serving.telemetry.page.text_page import TextPage, label_sets

GAUGE = Family("a_gauge", "Some help.", kind="gauge", unit="1", labels=("x", "y"))
COUNTER = Family("a_counter", "More help.", kind="counter", unit="s")


def test_two_families_by_hand() -> None:
    page = TextPage()
    page.add(GAUGE, [(("1", "b"), 2.5), (("2", ""), 7)])
    page.one(COUNTER, 1e21)

    assert page.text() == (
        "# HELP a_gauge Some help.\n# TYPE a_gauge gauge\n"
        'a_gauge{x="1",y="b"} 2.5\na_gauge{x="2",y=""} 7\n'
        "# HELP a_counter_total More help.\n# TYPE a_counter_total counter\n"
        "a_counter_total 1e+21\n"
    )


def test_families_that_share_label_sets_are_written_as_each_alone() -> None:
    other = Family("other", "Other help.", kind="gauge", unit="1", labels=("x", "y"))
    values = (("1", "b"), ("2", 'c"'))
    together, alone = TextPage(), TextPage()
    for family in (GAUGE, other):
        together.add_each(family, label_sets(values), [1.5, 2])
        alone.add(family, zip(values, [1.5, 2], strict=True))

    assert together.text() == alone.text()
    assert label_sets(tuple(values)) is label_sets(values)
    with pytest.raises(ValueError, match="shorter"):
        TextPage().add_each(GAUGE, label_sets(values), [1.5])


def test_a_family_without_samples_is_left_out() -> None:
    page = TextPage()
    page.add(GAUGE, [])
    assert page.text() == ""


def test_a_family_is_on_a_page_once() -> None:
    page = TextPage()
    page.one(COUNTER, 1)
    with pytest.raises(AssertionError):
        page.one(COUNTER, 2)


@given(
    st.dictionaries(
        st.tuples(st.text(max_size=8), st.text(max_size=8)),
        st.floats(allow_nan=False) | st.integers(0, 2**60),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_what_a_scraper_reads(rows: dict[tuple[str, str], float]) -> None:
    page = TextPage()
    page.add(GAUGE, rows.items())
    (family,) = text_string_to_metric_families(page.text())

    read = {(s.labels["x"], s.labels["y"]): s.value for s in family.samples}
    assert read.keys() == rows.keys()
    assert all(math.isclose(read[key], value) for key, value in rows.items())


@pytest.mark.parametrize(
    "wrong", [{"name": "Upper"}, {"name": "a_total"}, {"help": "no dot"}, {"help": "two\nlines."}]
)
def test_a_family_that_would_not_be_read_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Family(**({"name": "a", "kind": "gauge", "unit": "1", "help": "A."} | wrong))  # type: ignore[arg-type]
