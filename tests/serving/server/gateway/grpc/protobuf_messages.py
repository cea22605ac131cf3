"""Any message of a protobuf type, with critical values: for fuzzers."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_INT = FieldDescriptor
_BOUNDS = {
    _INT.TYPE_INT32: (-(2**31), 2**31 - 1),
    _INT.TYPE_INT64: (-(2**63), 2**63 - 1),
    _INT.TYPE_UINT32: (0, 2**32 - 1),
    _INT.TYPE_UINT64: (0, 2**64 - 1),
}
_DEPTH_MAX = 3


def messages(descriptor: Descriptor, depth: int = 0) -> st.SearchStrategy[Any]:
    """Messages of the type; each field may be missing."""
    kind = GetMessageClass(descriptor)
    fields = fields_of(descriptor, depth)
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


def fields_of(descriptor: Descriptor, depth: int = 0) -> dict[str, st.SearchStrategy[Any]]:
    fields = [each for each in descriptor.fields if depth < _DEPTH_MAX or not each.message_type]
    return {each.name: _field(each, depth) for each in fields}


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return st.dictionaries(_value(key, depth), _value(value, depth), max_size=3)
    one = _value(field, depth)
    return st.lists(one, max_size=4) if field.is_repeated else one


def _value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth + 1)
    if field.enum_type is not None:
        return st.sampled_from([each.number for each in field.enum_type.values])
    if field.type in _BOUNDS:
        low, high = _BOUNDS[field.type]
        edges = [each for each in (low, -1, 0, 1, 2, 7, 511, 512, 1_023, high) if low <= each]
        return st.sampled_from(edges) | st.integers(low, high)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return st.floats(width=32)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=16)
    assert field.type == FieldDescriptor.TYPE_STRING, field
    return st.sampled_from(["", "a", "{}", "[a-z]+", "\x00"]) | st.text(
        st.characters(codec="utf-8"), max_size=16
    )
