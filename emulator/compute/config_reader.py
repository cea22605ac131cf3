"""Typed access to a parsed config.json; every refusal names the file, the key and its value."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from emulator.errors import CheckpointError

_WHOLE_MAX: Final = (1 << 31) - 1
"""Far more than a side of any matrix."""


class ConfigReader:
    """The keys of `values`, read from `path`; raises CheckpointError."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values = values
        self.path = path

    @classmethod
    def of_checkpoint(cls, directory: Path) -> "ConfigReader":
        """Read `directory`/config.json, with what ModelOpt writes beside it."""
        path = directory / "config.json"
        config = _read_object(path)
        if config is None:
            raise CheckpointError(f"{directory}: not a checkpoint directory, no config.json")
        beside = directory / "hf_quant_config.json"
        quantised = cls(_read_object(beside) or {}, str(beside))
        stored = quantised.section("quantization").values
        if stored.get("quant_algo") and not config.get("quantization_config"):
            config["quantization_config"] = {"quant_method": "modelopt", **stored}
        return cls(config, str(path))

    def section(self, key: str) -> "ConfigReader":
        """The object under `key`; an empty one where it is missing or null."""
        values = self.values.get(key)
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise self.refusal(key, "must be an object")
        return ConfigReader(values, f"{self.path}: {key}")

    def refusal(self, key: str, wanted: str) -> CheckpointError:
        """An error that says what `key` must be to be computed here."""
        return CheckpointError(f"{self.path}: {key}={self.values.get(key)}: {wanted}")

    def whole(
        self, key: str, *, default: int | None = None, least: int = 1, most: int = _WHOLE_MAX
    ) -> int:
        """The whole number under `key`; `default` where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.path}: key {key} is missing")
            return default
        if type(value) is not int or value < least:
            raise self.refusal(key, f"must be a whole number of at least {least}")
        if value > most:
            raise self.refusal(key, f"must be at most {most:,}")
        return value

    def real(self, key: str, *, default: float) -> float:
        """The number above 0 under `key`."""
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not value > 0:
            raise self.refusal(key, "must be a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """The switch under `key`; `default` where it is missing.

        null is false, as transformers takes it, and refused where that is not the default.
        """
        value = self.values.get(key, default)
        if value is None and not default:
            return False
        if type(value) is not bool:
            raise self.refusal(key, "must be true or false")
        return value

    def require(self, key: str, accepted: Collection[object]) -> None:
        """Refuse a value of `key` that is neither missing, null, false, empty nor `accepted`."""
        value = self.values.get(key)
        if value and value not in accepted:
            wanted = " or ".join(map(str, accepted)) or "absent"
            raise self.refusal(key, f"must be {wanted} to be computed here")


def _read_object(path: Path) -> dict[str, Any] | None:
    """None where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return found
