"""A deployment's settings, read once at the gateway and passed on.

The keys are those of vLLM's `--additional-config '{"ultraserve": {...}}'` and the flags of
`ultraserve serve`. A wrong key or value stops the start and names itself.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import CALIBRATIONS, calibration_name
from serving.policy.prefill_throttle import DEFAULT_PREFILL_POLICY, PREFILL_POLICIES
from serving.policy.rank_roles import check_prefill_ranks, parse_prefill_ranks
from startup.typed_options import option

if TYPE_CHECKING:
    from emulator.specs.partition import Partition
    from emulator.specs.system import SystemSpec

KEY = "ultraserve"
"""Key of the settings in vLLM's additional config."""

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
            raise ConfigError("clock", text, _CLOCKS)
        return cls(kind=kind, dilation=dilation)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NAME_WORDS = "a name: at most 32 of the letters A-Z and a-z, digits, _ and -"
_WORDS = {
    "system": "a catalog name",
    "ultraserver": _NAME_WORDS,
    "model": "a catalog name",
    "routing": "uniform, zipf:S or a file",
    "prefill_policy": "a policy's name",
    "quantization": "a format's name",
    "kv_cache_dtype": "auto, bf16 or fp8",
    "ray_address": "host:port",
    "kv_key_file": "a file's path",
}
_SWITCHES = ("computes", "exclusive_cores")
_WHOLE_NUMBERS = {
    "chips": 1,
    "tp": 1,
    "ep": 1,
    "lnc": 1,
    "first_chip": 0,
    "spares": 0,
    "expect_concurrency": 1,
    "ray_node": 0,
}
"""The least that each may be; the partition checks what fits together."""


@dataclass(frozen=True, kw_only=True)
class AssumptionOptions:
    """Assumptions where a machine's sources disagree, and other values of its figures."""

    GROUP = "machine"

    assumptions: Sequence[str] = option(
        (),
        "where sources disagree about a machine, take another assumption (SWITCH=ASSUMPTION); or "
        "what if a figure were another: hbm_bandwidth=2x, hop_ns=230ns, idle_watts=-10% "
        "(repeatable; `ultraserve describe NAME` lists switches and figures)",
        *("--assumption", "--set"),
        metavar="NAME=VALUE",
    )


@dataclass(frozen=True, kw_only=True)
class CostModelOptions(AssumptionOptions):
    """Options on which a step's time rests, in every command."""

    overlap: str = option(
        "none",
        "how far the exchange of tokens hides behind computing",
        metavar="{" + ",".join(Overlap) + "}",
    )
    calibration: str = option(
        "fitted",
        "fitted: with the overheads of real stacks, as `ultraserve validate` holds them against "
        "measurements (default); roofline: what the hardware allows",
        type=calibration_name,
        metavar="{" + ",".join(CALIBRATIONS) + "}",
    )
    routing: str | None = option(
        None,
        "where the tokens of a catalog model go: uniform, zipf:S, or a file of recorded expert "
        "loads (default: uniform)",
        metavar="HOW",
    )


@dataclass(frozen=True, kw_only=True)
class MachineOptions(CostModelOptions):
    """One machine of the catalog."""

    system: str = option("trn3-nl72x2", "machine of the catalog", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class PrefillOptions:
    """How a rank's scheduler holds prefills back for decodes."""

    GROUP = "schedulers"

    prefill_policy: str | None = option(
        None,
        f"how prefills are held back for decodes: {PREFILL_POLICIES} "
        f"(default: {DEFAULT_PREFILL_POLICY})",
        metavar="POLICY",
    )


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(MachineOptions):
    """Chips of one engine, and how they divide a model."""

    GROUP = "partition: chips = tp x dp; experts lie on whole groups of ep chips"

    chips: int = option(4, "chips (default: tp x dp, or 4)")
    tp: int = option(
        1,
        "chips of a rank, which divide its attention heads and KV cache",
        *("--tp", "--tensor-parallel-size", "-tp"),
    )
    ep: int | None = option(
        None, "chips over which the experts are spread (default: all)", "--ep", "--ep-degree"
    )
    lnc: int | None = option(
        None,
        "physical NeuronCores of a logical one: 1, 2 or 8 (default: the chip's; 8 is announced by "
        "the vendor, not released)",
    )

    attention_split: str = option(
        "heads",
        "what a chip's logical cores divide of the attention of requests that decode: their heads, "
        "whose keys and values repeat on cores that share them; the batch (attention "
        "data-parallel); or their sequences (decode context parallel)",
        metavar="{" + ",".join(AttentionSplit) + "}",
    )

    def partition(self, system: "SystemSpec") -> "Partition":
        """The partition on `system`, with what its options leave open; raises ConfigError."""
        from emulator.specs.partition import Partition

        return Partition(
            chips=self.chips,
            tp=self.tp,
            ep=self.chips if self.ep is None else self.ep,
            lnc=system.chip.default_lnc.count if self.lnc is None else self.lnc,
            attention_split=AttentionSplit.named(self.attention_split),
        )


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Number formats of the timed model, and of the weights that make the tokens."""

    GROUP = "number formats"

    quantization: str | None = option(
        None,
        "of weights and of the activations multiplied by them: bf16, fp8, mxfp8, mxfp4 (experts "
        "alone), w4a8, or stored (default: timed as stored, tokens computed in FP32)",
        *("--quantization", "-q"),
        metavar="NAME",
    )
    kv_cache_dtype: str = option(
        "auto",
        "of keys and values: bf16 or fp8; auto is the model's own",
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class RunningOptions(PrefillOptions):
    """How an engine runs."""

    GROUP = "running"

    clock: str = option(
        "auto",
        "real, auto or dilated:K (K wall seconds per emulated second; auto follows the load, so "
        "that this host just keeps up)",
    )
    expect_concurrency: int | None = option(
        None,
        "requests under way at a time, of all ranks, that --clock auto begins for (default: one a "
        "rank); from then on it follows what is measured",
    )
    pue: float | None = option(None, "facility PUE (default: the system's)")
    ray_address: str | None = option(
        None,
        "a running Ray cluster whose nodes hold the chips (default: a Ray of our own)",
        metavar="HOST:PORT",
    )
    ray_node: int | None = option(
        None,
        "that cluster's node, by its number from 0 for this host's, that the chips stay on while "
        "it has memory for them; numbers go round the nodes (default: chips are spread over all)",
    )
    hang_timeout_s: float = option(
        30.0,
        "emulated seconds until a silent chip is given up (default: 30, the Neuron runtime's)",
        metavar="S",
    )
    silence_timeout_s: float = option(
        10.0,
        "wall seconds until a chip is given up whose process does nothing at all, though no fault "
        "was injected",
        metavar="S",
    )


ENGINES: Final = ("default", "fast")


@dataclass(frozen=True, kw_only=True)
class Settings(RunningOptions, FormatOptions, PartitionOptions):
    """The platform's settings: the options of a deployment, and what they resolve to.

    Attributes:
        first_chip: of the machine, where the partition begins.
        model: catalog name of the model that sets time, HBM and energy; None: the weights that
            compute the tokens do.
        computes: False synthesises tokens instead of computing them (`--weights none`).
        eplb: vLLM's own `--eplb-config` object; None leaves experts in place.
        exclusive_cores: the cores were asked for by number: no other process may have them.
    """

    GROUP = PartitionOptions.GROUP

    ultraserver: str = option(
        "0",
        "which machine of that kind it is: engines of one name have partitions of one machine, and "
        "no two get the same cores of it where they name them",
        metavar="NAME",
    )
    spares: int = option(0, "chips that stand by for lost ones")
    prefill_ranks: int | str = option(
        0,
        "ranks that compute prompts alone: a request goes on with its first token to one of the "
        "others, which decode, and its KV goes there over the fabric; auto: as many as prompts "
        "need, by the load (default: 0, all do both)",
        type=parse_prefill_ranks,
        metavar="N",
    )
    kv_key_file: str | None = option(
        None,
        "private file with the key that engines prove to each other before KV goes between them, "
        "with --kv-transfer-config (default: one of this user's on this machine)",
        metavar="FILE",
    )
    engine: str = option(
        "default",
        "fast: schedulers that are compiled, with the decisions of vLLM's, for --weights none; "
        "requests that need scores of tokens get a 400",
        metavar="{" + ",".join(ENGINES) + "}",
    )
    first_chip: int = 0
    model: str | None = None
    computes: bool = True
    eplb: Mapping[str, Any] | None = None
    exclusive_cores: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.clock, str):
            raise ConfigError("clock", self.clock, _CLOCKS)
        follows = ClockSetting.parse(self.clock).kind == "auto"
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            fits = type(value) is int and value >= least
            self._check(name, fits, f"a whole number of at least {least}")
        check_prefill_ranks(self.prefill_ranks, self.ranks)
        self._check("ray_node", self.ray_address is not None, "none without a ray_address")
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
        self._check("engine", self.engine in ENGINES, " or ".join(ENGINES))
        if self.engine == "fast" and self.computes:
            raise ConfigError("engine", "fast", "--weights none with it: it computes no tokens")
        self._check("overlap", self.overlap in tuple(Overlap), " or ".join(Overlap))
        splits = tuple(AttentionSplit)
        self._check("attention_split", self.attention_split in splits, " or ".join(splits))
        self._check("calibration", self.calibration in CALIBRATIONS, " or ".join(CALIBRATIONS))
        named = isinstance(self.assumptions, list | tuple) and all(
            isinstance(text, str) for text in self.assumptions
        )
        self._check("assumptions", named, "a list of SWITCH=ASSUMPTION or FIGURE=VALUE")
        self._check("eplb", isinstance(self.eplb, Mapping), "an object of settings")

    def _check(self, name: str, fits: bool, expected: str) -> None:
        value = getattr(self, name)
        absent = value is None and self.__dataclass_fields__[name].default is None
        if not fits and not absent:
            raise ConfigError(name, value, expected)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks: chips over tp; the partition checks that it divides."""
        return self.chips // self.tp

    @classmethod
    def from_additional_config(cls, additional: Mapping[str, Any] | None) -> "Settings":
        """Read the settings of vLLM's additional config; absent means all defaults. Raises
        ConfigError for no object, an unknown key, or a value out of range.
        """
        given = (additional or {}).get(KEY, {})
        if not isinstance(given, Mapping):
            raise ConfigError(KEY, given, "an object of settings")
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in (*known, "readings"):
                raise ConfigError(f"{KEY}.{name}", value, f"one of the keys {', '.join(known)}")
        settings = dict(given)
        if "readings" in settings:
            warnings.warn(
                f"{KEY}.readings is now called assumptions; the next release refuses the old name",
                FutureWarning,
                stacklevel=2,
            )
            settings["assumptions"] = settings.pop("readings")
        if isinstance(assumptions := settings.get("assumptions"), list):  # JSON has no tuples
            settings["assumptions"] = tuple(assumptions)
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
