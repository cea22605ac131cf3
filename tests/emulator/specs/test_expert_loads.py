import numpy as np
import pytest

from emulator.specs.expert_loads import ExpertLoads


def loads(pairs: list[list[int]], distinct: list[list[int]], chips: int = 2) -> ExpertLoads:
    return ExpertLoads(
        pairs=np.array(pairs),
        distinct=np.array(distinct),
        sent=np.zeros((len(pairs), chips, chips)),
    )


def test_loads_of_one_layer_and_two_chips_are_kept() -> None:
    assert loads([[3, 0]], [[2, 0]]).pairs.tolist() == [[3, 0]]


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2\), \(1, 1\), \(1, 2, 2\)"):
        loads([[3, 0]], [[2]])
    with pytest.raises(ValueError, match=r"\(1, 3, 3\)"):
        loads([[3, 0]], [[2, 0]], chips=3)


def test_negative_numbers_and_more_experts_than_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs is not negative"):
        loads([[-1, 0]], [[0, 0]])
    with pytest.raises(ValueError, match="at most as many experts"):
        loads([[1, 0]], [[2, 0]])
