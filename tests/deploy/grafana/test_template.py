"""Variables are filled in as Grafana does it."""

import pytest

from tests.deploy.grafana.template import filled


def test_a_variable_is_found_in_each_of_its_forms() -> None:
    assert filled("a$x b${x} c${x:regex} d[[x]]", {"x": "1"}) == "a1 b1 c1 d1"


def test_several_values_become_one_regular_expression() -> None:
    assert filled('{a=~"$x"}', {"x": ("1.0", "2")}) == r'{a=~"(1\\.0|2)"}'


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="y"):
        filled("$x $y", {"x": "1"})
