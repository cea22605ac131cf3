"""Parameters of a test whose every combination is more than a day's worth."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def half_of_all(*choices: Sequence[Any]) -> list[Any]:
    """All combinations, for `pytest.mark.parametrize`; every second one is slow.

    Each value is in one that is not, where each choice has two at least; of three choices and more
    any two values meet there.
    """
    found = []
    for places in product(*(range(len(choice)) for choice in choices)):
        values = (choice[place] for choice, place in zip(choices, places, strict=True))
        found.append(pytest.param(*values, marks=[pytest.mark.slow] if sum(places) % 2 else []))
    return found
