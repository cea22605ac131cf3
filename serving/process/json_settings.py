"""Settings that a server's process gets as JSON, in its environment: vLLM starts it without
arguments of ours.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

Settings = TypeVar("Settings")


def settings_text(settings: Any) -> str:
    """What `read_settings` reads."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def read_settings(text: str, kind: type[Settings]) -> Settings:
    """Raises ConfigError, or msgspec.ValidationError for JSON that `settings_text` never writes."""
    return msgspec.json.decode(text, type=kind, dec_hook=_path)


def _path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
