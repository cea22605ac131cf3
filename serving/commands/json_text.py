"""Our frozen types as JSON for a reader: their own field names, base units, indented."""


def json_text(value: object) -> str:
    """The value's JSON; the same bytes for the same value."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
