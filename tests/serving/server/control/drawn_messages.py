"""Messages for a fuzzer: valid ones of a method's type, and bytes near them."""

from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

_EDGES = {
    "INT32": st.sampled_from([0, 1, -1, 2, 7, 100, 2**31 - 1, -(2**31)]),
    "INT64": st.sampled_from([0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63)]),
    "DOUBLE": st.sampled_from(
        [0.0, -0.0, 0.1, 1.0, 1.5, -1.0, 60.0, 1e300, float("inf"), float("-inf"), float("nan")]
    ),
    "BOOL": st.booleans(),
    "STRING": st.sampled_from(
        ["", "manual", "never", "demand", "weights", "kv_cache", "/", ".", "\0", "x" * 5_000]
    )
    | st.text(max_size=12),
}
_NAMES = {1: "DOUBLE", 3: "INT64", 5: "INT32", 8: "BOOL", 9: "STRING"}


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of the type; each field may be missing."""
    fields = {field.name: _value(field) for field in kind.DESCRIPTOR.fields}

    def made(values: dict[str, Any]) -> Message:
        return kind(**{name: value for name, value in values.items() if value is not None})

    return st.fixed_dictionaries({}, optional=fields).map(made)


def _value(field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        one: st.SearchStrategy[Any] = messages(field.message_type._concrete_class)
    elif field.enum_type is not None:
        one = st.integers(0, len(field.enum_type.values)) | st.sampled_from([-1, 99])
    else:
        one = _EDGES[_NAMES[field.type]]
    return st.lists(one, max_size=6) if field.is_repeated else one


def raw(kind: type[Message]) -> st.SearchStrategy[bytes]:
    """A message's bytes, often damaged (cut, a byte changed, bytes inserted); or any bytes."""
    whole = messages(kind).map(lambda message: message.SerializeToString())
    hurt = st.builds(_hurt, whole, st.integers(0, 2**16), st.binary(max_size=4), st.booleans())
    return st.one_of(whole, whole, hurt, st.binary(max_size=64))


def _hurt(whole: bytes, at: int, new: bytes, cut: bool) -> bytes:
    place = at % (len(whole) + 1)
    return whole[:place] + new + (b"" if cut else whole[place + 1 :])
