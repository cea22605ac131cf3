"""vLLM's `--eplb-config`, with its spelling and defaults.

vLLM refuses that flag on platforms other than CUDA and ROCm, so it is read here. Source: EPLBConfig
in vllm/config/parallel.py of vLLM 0.32.0; tests compare the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from emulator.errors import ConfigError

_FIELD = "eplb-config"
_AT_LEAST = {
    "window_size": 1,
    "step_interval": 1,
    "num_redundant_experts": 0,
    "log_balancedness_interval": 1,
}
_SWITCHES = ("log_balancedness", "use_async", "enable_migration_batching")


@dataclass(frozen=True, slots=True, kw_only=True)
class EplbSettings:
    """When experts are rebalanced, and from what.

    Attributes:
        window_size: steps whose load counts.
        step_interval: steps between rebalancings.
        num_redundant_experts: copies beyond one of each expert, per expert-parallel group.
        log_balancedness: log the mean chip's load over the busiest one's, every
            `log_balancedness_interval` steps.
        use_async: layers move one by one between steps; otherwise all at once between two steps.
        policy: "default", vLLM's only one.
        communicator: None; vLLM's are GPU libraries, ours is the emulated fabric.
        enable_migration_batching: False; transfers of a round share the links.

    Raises ConfigError, in one line, for values out of range or not supported.
    """

    window_size: int = 1_000
    step_interval: int = 3_000
    num_redundant_experts: int = 0
    log_balancedness: bool = False
    log_balancedness_interval: int = 1
    use_async: bool = True
    policy: str = "default"
    communicator: str | None = None
    enable_migration_batching: bool = False

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise _refusal(name, value, f"a whole number of at least {least}")
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise _refusal(name, getattr(self, name), "true or false")
        if self.policy != "default":
            raise _refusal("policy", self.policy, "default")
        if self.communicator is not None:
            raise _refusal("communicator", self.communicator, "null: experts move on NeuronLink")
        if self.enable_migration_batching:
            raise _refusal(
                "enable_migration_batching", True, "false: a layer's experts all move together"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The defaults with `values`; raises ConfigError as the class, and for an unknown key."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(_FIELD, key, f"one of {', '.join(known)}")
        return cls(**values)

    def slots_per_chip(self, *, experts: int, ep: int) -> int:
        """Slots of each chip in a group of `ep`, per layer.

        Raises ConfigError, with fitting numbers of copies, where experts and copies do not divide
        over the chips, as vLLM does under EPLB (FusedMoE in
        vllm/model_executor/layers/fused_moe/layer.py).
        """
        placed = experts + self.num_redundant_experts
        if placed % ep:
            below = placed // ep * ep - experts
            fitting = [copies for copies in (below, below + ep) if copies >= 0]
            raise _refusal(
                "num_redundant_experts",
                self.num_redundant_experts,
                f"{' or '.join(map(str, fitting))}, so that {experts} experts and their copies "
                f"divide over {ep} chips",
            )
        return placed // ep


def _refusal(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{_FIELD}.{name}", value, expected)
