from dataclasses import fields

from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES, help_text
from loadgen.measures.run_measures import EnergyMeasures


def test_every_figure_has_one_definition() -> None:
    names = [each.name for each in (*DISTRIBUTIONS, *RATES, *ENERGY)]

    assert len(names) == len(set(names))


def test_every_figure_of_the_meters_is_defined() -> None:
    figures = {field.name for field in fields(EnergyMeasures)} - {"metered_s"}

    assert figures == {each.name for each in ENERGY}


def test_the_help_has_every_formula_in_lines_that_fit_a_terminal() -> None:
    text = help_text()
    words = " ".join(text.split())

    for definition in (*DISTRIBUTIONS, *RATES, *ENERGY):
        assert definition.formula in words
        assert definition.label in words
    assert max(len(line) for line in text.splitlines()) <= 100
