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


_CATALOG_NAMES = ("system", "model")
_WHOLE_NUMBERS = {"chips": 1, "tp": 1, "ep": 1, "lnc": 1, "first_chip": 0, "spares": 0}
"""The least that each may be; what fits together is the partition's to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The platform's settings.

    Attributes:
        system: catalog name of the machine.
        chips: chips of the partition, from `first_chip` of the machine on.
        tp: chips that make one data-parallel rank and divide its attention heads.
        ep: chips over which the experts are spread, in groups; None spreads them over all chips.
        lnc: physical NeuronCores of a logical one; None takes the chip's default.
        spares: more chips of the machine that stand by for lost ones.
        model: catalog name of the model that sets time, HBM and energy; None when the weights
            that compute the tokens set them too.
        computes: False makes tokens up instead of computing them (`--weights none`).
        routing: where the timed model's tokens go when its own router is not computed: see
            `emulator.model.ExpertDistribution`; None is uniform.
        clock: see `ClockSetting`.
        pue: power usage effectiveness of the facility; None takes the system's own.
        prefill_policy: how prefills are held back for decodes; see `serving.policy`.
        eplb: vLLM's own `--eplb-config` object; None leaves experts where they are.
        ray_address: a running Ray cluster to join; None starts one of our own.
        hang_timeout_s: emulated seconds until a chip that does not answer is given up.
        exclusive_cores: the cores were asked for by number: no other process may have them.
    """

    system: str = "trn3-nl72x2"
    chips: int = 4
    tp: int = 1
    ep: int | None = None
    lnc: int | None = None
    first_chip: int = 0
    spares: int = 0
    model: str | None = None
    computes: bool = True
    routing: str | None = None
    clock: str = "auto"
    pue: float | None = None
    prefill_policy: str | None = None
    eplb: Mapping[str, Any] | None = None
    ray_address: str | None = None
    hang_timeout_s: float = 30.0
    exclusive_cores: bool = False

    def __post_init__(self) -> None:
        ClockSetting.parse(self.clock)
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                expected = f"a whole number of at least {least}"
                raise ConfigError(field=name, value=value, expected=expected)
        if self.pue is not None and not (
            isinstance(self.pue, float | int) and 1.0 <= self.pue < float("inf")
        ):
            raise ConfigError(field="pue", value=self.pue, expected="a number of at least 1")
        if not (
            isinstance(self.hang_timeout_s, float | int)
            and 0.0 < self.hang_timeout_s < float("inf")
        ):
            raise ConfigError(
                field="hang_timeout_s", value=self.hang_timeout_s, expected="seconds above 0"
            )
        for name in _CATALOG_NAMES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(field=name, value=value, expected="a catalog name")
        if self.eplb is not None and not isinstance(self.eplb, Mapping):
            raise ConfigError(field="eplb", value=self.eplb, expected="an object of settings")

    @property
    def ranks(self) -> int:
        """Data-parallel ranks: chips over tp; whether it divides is the partition's to say."""
        return self.chips // self.tp

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
