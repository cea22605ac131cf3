import msgspec
import pytest

from serving.wire.machine_state import ChipState, MachineState
from tests.serving.telemetry.machine_states import a_broken_chip, a_chip, a_state


def test_a_chip_s_hbm_is_the_sum_of_its_owners_in_the_stacks_that_work() -> None:
    assert a_chip(0).hbm_used_bytes == 4 * (10**9 + 5 * 10**8)
    assert a_chip(0).hbm_capacity_bytes == 144 * 10**9
    assert a_broken_chip().hbm_used_bytes == 3 * (10**9 + 5 * 10**8)
    assert a_broken_chip().hbm_capacity_bytes == 108 * 10**9


def test_a_state_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        a_state().steps = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": 1}, "unknown field `extra`"),
        ({"steps": -1}, "Expected `int` >= 0"),
        ({"steps": 1.5}, "Expected `int`, got `float`"),
        ({"emulated_s": None}, "Expected `float`, got `null`"),
        ({"chips": [{"chip": 0}]}, "missing required field"),
    ],
)
def test_json_that_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    given = {**msgspec.to_builtins(a_state()), **change}

    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.json.decode(msgspec.json.encode(given), type=MachineState)


def test_a_missing_field_is_refused_even_when_it_may_be_none() -> None:
    given = msgspec.to_builtins(a_chip(0))
    del given["rank"]

    with pytest.raises(msgspec.ValidationError, match="missing required field `rank`"):
        msgspec.convert(given, ChipState)
