"""The only translation between our frozen types and the messages of `ultraserve.v1`.

A message has its type's field names; an enum's value is the same word with a prefix. Both
directions follow the message's descriptor; a field of only one side fails an assert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from protos.ultraserve.v1 import fault_pb2

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# The library's descriptors come from one of two implementations, which share no type.
EnumDescriptor = Any
FieldDescriptor = Any

_UNSPECIFIED: Final = "UNSPECIFIED"

# What a fault's fields hold when its kind has no use for them; on the wire they are absent.
_UNUSED: Final = {
    field.name: field.default for field in fields(Fault) if field.default is not MISSING
}


def to_message(value: object, kind: type[M]) -> M:
    """`value` as a message of type `kind`."""
    message = kind()
    _fill(message, _plain_value(value))
    return message


def _plain_value(value: object) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    if isinstance(value, msgspec.Struct) and value.__struct_config__.tag_field:
        del plain[value.__struct_config__.tag_field]  # on the wire the message's type says it
    return plain


def from_message(message: Message, kind: type[T]) -> T:
    """The inverse of `to_message`. Raises msgspec.ValidationError for a required field absent or
    out of range; ConfigError for an invalid fault.
    """
    return msgspec.convert(_plain(message), kind)


def respond(kind: type[M], value: object, **more: Any) -> M:
    """The response of type `kind` with `value` as its first field, and `more`."""
    first: FieldDescriptor = kind.DESCRIPTOR.fields[0]
    return kind(**{first.name: to_message(value, GetMessageClass(first.message_type))}, **more)


def request_fields(message: Message) -> dict[str, Any]:
    """The fields of a request; None for absent ones. Raises ConfigError for a negative integer,
    which no field allows, or an invalid fault.
    """
    fields: dict[str, Any] = {}
    for name, value in _plain(message).items():
        if isinstance(value, int) and value < 0:
            raise ConfigError(name, value, "at least 0")
        item = getattr(message, name)
        if isinstance(item, fault_pb2.Fault):
            fields[name] = fault_from_message(item)
        else:
            fields[name] = tuple(value) if isinstance(value, list) else value
    return fields


def request_message(kind: type[M], fields: Mapping[str, object]) -> M:
    """The inverse; None is absent, an enum's value its word or empty (default). Raises ConfigError
    for an unknown word.
    """
    message = kind()
    for name, value in fields.items():
        descriptor = kind.DESCRIPTOR.fields_by_name[name]
        if value is None or value == "":
            continue
        if descriptor.message_type is not None:
            _fill(getattr(message, name), _plain_value(value))
        elif descriptor.is_repeated:
            assert isinstance(value, Sequence)
            getattr(message, name).extend(value)
        elif descriptor.enum_type is not None:
            setattr(message, name, enum_number(kind, name, str(value)))
        else:
            setattr(message, name, value)
    return message


def answered(response: Message, kind: type[T]) -> T:
    """The first field of a response; raises as `from_message` does."""
    return from_message(getattr(response, response.DESCRIPTOR.fields[0].name), kind)


def fault_from_message(message: fault_pb2.Fault) -> Fault:
    """The fault in a request; raises ConfigError for an invalid one."""
    plain = _plain(message)
    for name, words in (("kind", FaultKind), ("tier", LinkTier)):
        if name in plain and plain[name] not in list(words):
            raise ConfigError(name, plain[name], f"one of {', '.join(words)}")
    if not isfinite(plain.get("factor", 1.0)):  # also of a kind that has no use for it
        raise ConfigError("factor", plain["factor"], "a number above 1")
    return msgspec.convert(plain, Fault)


def _fill(message: Message, value: dict[str, Any]) -> None:
    descriptors = message.DESCRIPTOR.fields_by_name
    assert set(value) == set(descriptors.keys()), (message.DESCRIPTOR.name, value.keys())
    for name, item in value.items():
        descriptor = descriptors[name]
        if item is None or (isinstance(message, fault_pb2.Fault) and _unused(name, item)):
            assert descriptor.has_presence, (message.DESCRIPTOR.name, name)
        elif isinstance(item, dict) and descriptor.is_repeated:
            getattr(message, name).update(item)
        elif isinstance(item, dict):
            _fill(getattr(message, name), item)
        elif descriptor.is_repeated and descriptor.message_type is not None:
            for one in item:
                _fill(getattr(message, name).add(), one)
        elif descriptor.is_repeated:
            getattr(message, name).extend(item)
        elif descriptor.enum_type is not None:
            setattr(message, name, _number(descriptor.enum_type, item))
        else:
            setattr(message, name, item)


def _unused(name: str, item: object) -> bool:
    return name in _UNUSED and item == _UNUSED[name]


def _plain(message: Message) -> dict[str, Any]:
    """An absent field is None, or left out of a fault."""
    plain: dict[str, Any] = {}
    for descriptor in message.DESCRIPTOR.fields:
        name = descriptor.name
        if not descriptor.has_presence or message.HasField(name):
            plain[name] = _plain_field(descriptor, getattr(message, name))
        elif not isinstance(message, fault_pb2.Fault):
            plain[name] = None
    return plain


def _plain_field(descriptor: FieldDescriptor, item: Any) -> Any:
    if isinstance(item, Mapping):
        return dict(item)
    if descriptor.is_repeated and descriptor.message_type is not None:
        return [_plain(one) for one in item]
    if descriptor.is_repeated:
        return list(item)
    if descriptor.message_type is not None:
        return _plain(item)
    if descriptor.enum_type is not None:
        return _word(descriptor.enum_type, item)
    return item


def _prefix(enum: EnumDescriptor) -> str:
    """`FAULT_KIND_` of FaultKind."""
    return str(enum.values_by_number[0].name).removesuffix(_UNSPECIFIED)


def _number(enum: EnumDescriptor, word: str) -> int:
    name = _prefix(enum) + word.upper().replace("-", "_")
    return int(enum.values_by_name[name].number)


def enum_number(kind: type[Message], field: str, word: str) -> int:
    """The number of an enum's word; raises ConfigError."""
    enum: EnumDescriptor = kind.DESCRIPTOR.fields_by_name[field].enum_type
    words = [_word(enum, value.number) for value in enum.values]
    if word not in words:
        raise ConfigError(field, word, f"one of {', '.join(words[1:])}")
    return _number(enum, word)


def word_of(message: Message, field: str) -> str:
    """A field's word: `wait` of REST_MODE_WAIT."""
    return _word(message.DESCRIPTOR.fields_by_name[field].enum_type, getattr(message, field))


def _word(enum: EnumDescriptor, number: int) -> str:
    """An unknown number, of a newer client, is its digits."""
    if number not in enum.values_by_number:
        return str(number)
    name = str(enum.values_by_number[number].name)
    return name.removeprefix(_prefix(enum)).lower().replace("_", "-")
