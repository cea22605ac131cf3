"""What was asked of a workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

TraceFormat = Literal["auto", "azure2023", "mooncake", "sharegpt", "burstgpt"]


class Lengths(Protocol):
    """A distribution of whole numbers from 1 on; `words` is how it was written."""

    @property
    def words(self) -> str: ...

    def draw(self, chance: np.random.Generator, count: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Either a trace (None: lengths are drawn) or synthetic lengths, and what is laid over them.

    `sessions` is how many (None: as many rows as the trace has, or as arrivals have times for).
    """

    trace: Path | None = None
    trace_format: TraceFormat = "auto"
    input_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    sessions: int | None = None
    window_s: tuple[float, float] | None = None
    shared_prefix_tokens: int = 0
    shared_prefix_groups: int = 1
    turns: Lengths | None = None
    think_s: float = 0.0
    fan_out: tuple[int, int] | None = None
    long_share: float = 0.0
    long_tokens: int = 0
    output_schema: Mapping[str, Any] | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
