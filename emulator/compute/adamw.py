"""AdamW (Loshchilov and Hutter 2017), in place on one flat vector, by cache-sized chunks."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.parameters import Layout, Parameters
from emulator.errors import ConfigError

_CHUNK_VALUES = 1 << 14
"""Values per chunk: six arrays of this length are 384 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWSettings:
    """`first_decay`, `second_decay`: beta 1 and beta 2, the share of a moment kept per step;
    `weight_decay`: of a weight removed per step and unit of learning rate.
    """

    first_decay: float = 0.9
    second_decay: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for field in ("first_decay", "second_decay"):
            value = getattr(self, field)
            if not 0 <= value < 1:
                raise ConfigError(field, value, "at least 0 and below 1")
        if not 0 < self.eps < float("inf"):
            raise ConfigError("eps", self.eps, "a number above 0")
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError("weight_decay", self.weight_decay, "a number of at least 0")


class AdamW:
    """Moments [layout.size] of a layout's parameters; the state is `first`, `second`, `steps`."""

    def __init__(self, layout: Layout, settings: AdamWSettings) -> None:
        self.layout = layout
        self.settings = settings
        self.first: Float32s = np.zeros(layout.size, dtype=np.float32)
        self.second: Float32s = np.zeros(layout.size, dtype=np.float32)
        self.steps = 0

    def step(
        self,
        parameters: Parameters,
        grads: Parameters,
        learning_rate: float,
        clip_factor: float = 1.0,
    ) -> None:
        """Update `parameters` by one step against `grads` * `clip_factor`; keeps `grads`."""
        self.steps += 1
        settings = self.settings
        # Moments begin at 0; dividing by what they can hold by now takes that off (their paper).
        first_whole = 1.0 - settings.first_decay**self.steps
        second_whole = 1.0 - settings.second_decay**self.steps
        step_size = learning_rate / first_whole
        for start, end, decays in self.layout.decaying_runs:
            kept = 1.0 - learning_rate * settings.weight_decay if decays else 1.0
            for low in range(start, end, _CHUNK_VALUES):
                part = slice(low, min(low + _CHUNK_VALUES, end))
                gradient = grads.flat[part] * clip_factor
                self._step_part(
                    parameters.flat[part], gradient, part, kept, step_size, second_whole
                )
        parameters.changed()

    def _step_part(
        self,
        weights: Float32s,
        gradient: Float32s,
        part: slice,
        kept: float,
        step_size: float,
        second_whole: float,
    ) -> None:
        first, second = self.first[part], self.second[part]
        settings = self.settings
        # m = b1 m + (1 - b1) g, as m + (1 - b1) (g - m)
        scratch = gradient - first
        scratch *= 1.0 - settings.first_decay
        first += scratch
        second *= settings.second_decay
        np.square(gradient, out=gradient)
        gradient *= 1.0 - settings.second_decay
        second += gradient
        np.multiply(second, 1.0 / second_whole, out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += settings.eps
        np.divide(first, scratch, out=scratch)
        scratch *= step_size
        if kept != 1.0:
            weights *= kept
        weights -= scratch


def squared_norm(flat: Float32s) -> float:
    """The sum of squares, in float64 by chunks, first to last."""
    total = 0.0
    for start in range(0, flat.size, _CHUNK_VALUES):
        part = flat[start : start + _CHUNK_VALUES]
        total += float(np.dot(part, part))
    return total


def clip_factor(norm: float, norm_max: float) -> float:
    """Factor that limits gradients of global `norm` to `norm_max`."""
    return min(1.0, norm_max / norm) if norm > 0 else 1.0
