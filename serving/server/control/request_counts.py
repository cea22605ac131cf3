"""Whole numbers of a request's message."""

from collections.abc import Sequence

from google.protobuf.message import Message

from emulator.errors import ConfigError


def counts(request: Message, names: Sequence[str]) -> dict[str, int]:
    """Those of the numbers that the request has; raises ConfigError for one below 0."""
    fields = request.DESCRIPTOR.fields_by_name
    given = {
        name: int(getattr(request, name))
        for name in names
        if not fields[name].has_presence or request.HasField(name)
    }
    for name, value in given.items():
        if value < 0:
            raise ConfigError(field=name, value=value, expected="at least 0")
    return given
