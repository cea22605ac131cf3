"""What a deployment asks of the platform, read once at the door and passed on.

The same keys travel in vLLM's own `--additional-config '{"ultraserve": {...}}'` and come from the
flags of `ultraserve serve`. A wrong key or value stops the start and names itself.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from emulator.errors import ConfigError

KEY = "ultraserve"
"""The name under which the settings lie in vLLM's additional config."""

_CLOCKS = "real, auto, virtual or dilated:K with K above 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting:
    """`kind` is real, dilated, auto or virtual; `dilation` is set for real (1) and dilated."""

    kind: str
    dilation: float | None

    @classmethod
    def parse(cls, text: str) -> "ClockSetting":
        """Read `real`, `auto`, `virtual` or `dilated:K`; raises ConfigError."""
        kind, _, factor = text.partition(":")
        if kind in ("auto", "virtual") and not factor:
            return cls(kind=kind, dilation=None)
        if kind == "real" and not factor:
            return cls(kind=kind, dilation=1.0)
        try:
            dilation = float(factor) if kind == "dilated" else 0.0
        except ValueError:
            dilation = 0.0
        if not 0.0 < dilation < float("inf"):
            raise ConfigError(field="clock", value=text, expected=_CLOCKS)
        return cls(kind=kind, dilation=dilation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The platform's settings.

    Attributes:
        system: catalog name of the machine.
        chips: chips of the partition; each is a data-parallel rank and holds its experts.
        model: catalog name of the model that sets time, HBM and energy; None when the weights
            that compute the tokens set them too.
        clock: see `ClockSetting`.
        pue: power usage effectiveness of the facility; None takes the system's own.
    """

    system: str = "trn3-nl72x2"
    chips: int = 4
    model: str | None = None
    clock: str = "auto"
    pue: float | None = None

    def __post_init__(self) -> None:
        ClockSetting.parse(self.clock)
        if not isinstance(self.chips, int) or isinstance(self.chips, bool) or self.chips < 1:
            raise ConfigError(field="chips", value=self.chips, expected="a whole number above 0")
        if self.pue is not None and not (
            isinstance(self.pue, float | int) and 1.0 <= self.pue < float("inf")
        ):
            raise ConfigError(field="pue", value=self.pue, expected="a number of at least 1")
        for name in ("system", "model"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(field=name, value=value, expected="a catalog name")

    @classmethod
    def from_additional_config(cls, additional: Mapping[str, Any] | None) -> "Settings":
        """Read the settings of vLLM's additional config; absent means all defaults.

        Raises:
            ConfigError: not an object, an unknown key, or a value out of range.
        """
        given = (additional or {}).get(KEY, {})
        if not isinstance(given, Mapping):
            raise ConfigError(field=KEY, value=given, expected="an object of settings")
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    field=f"{KEY}.{name}",
                    value=value,
                    expected=f"one of the keys {', '.join(known)}",
                )
        if "clock" in given and not isinstance(given["clock"], str):
            raise ConfigError(field="clock", value=given["clock"], expected=_CLOCKS)
        return cls(**given)

    def to_additional_config(self) -> dict[str, Any]:
        """The inverse of `from_additional_config`."""
        return {KEY: asdict(self)}
