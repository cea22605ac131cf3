"""The state that is published upward after each step: small, frozen, plain."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine at the end of a step. Seconds and joules are emulated unless named wall.

    Totals count from the engine's start, idle time included in `emulated_s` and in the joules.
    """

    clock: str
    dilation: float
    emulated_s: float
    steps: int
    busy_s: float
    lag_s: float
    lagging_steps: int
    chip_joules: float
    facility_joules: float
    chips: int
    chip_watts: float
    facility_watts: float
    provisioned_watts: float
    compute_wall_s: float

    def to_payload(self) -> dict[str, Any]:
        """Return plain values, fit for vLLM's own messages."""
        return asdict(self)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """The inverse of `to_payload`."""
        return cls(**payload)
