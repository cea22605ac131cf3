import pytest

from emulator.specs.tensor_group import TensorGroup, TensorSplit


def test_a_group_is_bytes_of_one_copy_of_which_some_are_of_keys_and_values() -> None:
    attention = TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=96, kv_bytes=32)

    assert (attention.copy_bytes, attention.kv_bytes, attention.layers) == (96, 32, 1)
    assert TensorGroup(name="all", split=TensorSplit.HEADS, copy_bytes=8, kv_bytes=8).kv_bytes == 8
    assert TensorGroup(name="none", split=TensorSplit.WHOLE, copy_bytes=0, layers=0).layers == 0


@pytest.mark.parametrize(
    "fields", [{"kv_bytes": -1}, {"kv_bytes": 97}, {"copy_bytes": -1}, {"layers": -1}]
)
def test_bytes_that_cannot_be_are_a_programming_error(fields: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        TensorGroup(**{"name": "x", "split": TensorSplit.HEADS, "copy_bytes": 96, **fields})
