"""What a deployment asks of the platform, read once at the gateway and passed on.

The same keys travel in vLLM's own `--additional-config '{"ultraserve": {...}}'` and come from the
flags of `ultraserve serve`. A wrong key or value stops the start and names itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import CALIBRATIONS, calibration_name

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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NAME_WORDS = "a name: at most 32 of the letters A-Z and a-z, digits, _ and -"
_WORDS = {
    "system": "a catalog name",
    "ultraserver": _NAME_WORDS,
    "model": "a catalog name",
    "routing": "uniform, zipf:S or a file",
    "prefill_policy": "a policy's name",
    "ray_address": "host:port",
}
_MAY_BE_ABSENT = frozenset(
    {
        "ep",
        "lnc",
        "model",
        "routing",
        "expect_concurrency",
        "pue",
        "prefill_policy",
        "eplb",
        "ray_address",
    }
)
_SWITCHES = ("computes", "exclusive_cores")
_WHOLE_NUMBERS = {
    "chips": 1,
    "tp": 1,
    "ep": 1,
    "lnc": 1,
    "first_chip": 0,
    "spares": 0,
    "expect_concurrency": 1,
}
"""The least that each may be; what fits together is the partition's to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The platform's settings.

    Attributes:
        system: catalog name of the machine.
        ultraserver: which machine of that kind it is: engines with the same name have partitions of
            one machine, engines with different ones have machines, racks and power of their own.
        chips: chips of the partition, from `first_chip` of the machine on.
        tp: chips that make one data-parallel rank and divide its attention heads.
        ep: chips over which the experts are spread, in groups; None spreads them over all chips.
        lnc: physical NeuronCores of a logical one; None takes the chip's default.
        spares: more chips of the machine that stand by for lost ones.
        model: catalog name of the model that sets time, HBM and energy; None when the weights
            that compute the tokens set them too.
        computes: False makes tokens up instead of computing them (`--weights none`).
        routing: where the timed model's tokens go when its own router is not computed: see
            `emulator.timing.expert_distribution.ExpertDistribution`; None is uniform.
        clock: see `ClockSetting`.
        expect_concurrency: requests under way at a time, of all ranks, that `auto` begins for;
            None begins for one a rank. From then on it follows what is measured.
        pue: power usage effectiveness of the facility; None takes the system's own.
        overlap: how far the exchange of tokens hides behind computing: see `Overlap`.
        calibration: what real stacks add to the roofline: `fitted`, or `roofline` for nothing.
        readings: switches of the machine where sources disagree, each "SWITCH=READING".
        prefill_policy: how prefills are held back for decodes; see `serving.policy`.
        eplb: vLLM's own `--eplb-config` object; None leaves experts where they are.
        ray_address: a running Ray cluster to join; None starts one of our own.
        hang_timeout_s: emulated seconds until a chip that does not answer is given up.
        silence_timeout_s: wall seconds until a chip is given up whose process does nothing at all,
            without a fault that was injected.
        exclusive_cores: the cores were asked for by number: no other process may have them.
    """

    system: str = "trn3-nl72x2"
    ultraserver: str = "0"
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
    expect_concurrency: int | None = None
    pue: float | None = None
    overlap: str = "none"
    calibration: str = "fitted"
    readings: Sequence[str] = ()
    prefill_policy: str | None = None
    eplb: Mapping[str, Any] | None = None
    ray_address: str | None = None
    hang_timeout_s: float = 30.0
    silence_timeout_s: float = 10.0
    exclusive_cores: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.clock, str):
            raise ConfigError(field="clock", value=self.clock, expected=_CLOCKS)
        follows = ClockSetting.parse(self.clock).kind == "auto"
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            fits = type(value) is int and value >= least
            self._check(name, fits, f"a whole number of at least {least}")
        self._check("expect_concurrency", follows, "none beside a clock other than auto")
        for name, expected in _WORDS.items():
            self._check(name, isinstance(getattr(self, name), str), expected)
        fits = _NAME.fullmatch(self.ultraserver) is not None
        self._check("ultraserver", fits, _NAME_WORDS)
        for name in _SWITCHES:
            self._check(name, type(getattr(self, name)) is bool, "true or false")
        self._check("pue", _lies_in(self.pue, least=1.0), "a number of at least 1")
        timeout_fits = _lies_in(self.hang_timeout_s, least=0.0) and self.hang_timeout_s > 0
        self._check("hang_timeout_s", timeout_fits, "seconds above 0")
        silence_fits = _lies_in(self.silence_timeout_s, least=1.0)
        self._check("silence_timeout_s", silence_fits, "at least 1 second of wall time")
        self._check("overlap", self.overlap in tuple(Overlap), " or ".join(Overlap))
        self._check("calibration", self.calibration in CALIBRATIONS, " or ".join(CALIBRATIONS))
        named = isinstance(self.readings, list | tuple) and all(
            isinstance(text, str) for text in self.readings
        )
        self._check("readings", named, "a list of SWITCH=READING")
        self._check("eplb", isinstance(self.eplb, Mapping), "an object of settings")

    def _check(self, name: str, fits: bool, expected: str) -> None:
        value = getattr(self, name)
        if not fits and not (value is None and name in _MAY_BE_ABSENT):
            raise ConfigError(field=name, value=value, expected=expected)

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
        settings = dict(given)
        if isinstance(readings := settings.get("readings"), list):  # JSON has no tuples
            settings["readings"] = tuple(readings)
        if isinstance(calibration := settings.get("calibration"), str):
            settings["calibration"] = calibration_name(calibration)
        return cls(**settings)

    def to_additional_config(self) -> dict[str, Any]:
        """The inverse of `from_additional_config`."""
        return {KEY: asdict(self)}


def _lies_in(value: object, *, least: float) -> bool:
    """Whether `value` is a finite number of at least `least`."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return is_number and least <= value < float("inf")  # type: ignore[operator]
