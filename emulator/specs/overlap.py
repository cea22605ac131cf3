"""Overlap of token exchanges with computing, by the field's names."""

from enum import StrEnum


class Overlap(StrEnum):
    """NONE: a layer's exchanges wait for its computing. TWO_BATCH: the step's tokens run as two
    halves, one computing while the other is exchanged. FULL: communication hides behind any
    computing, a bound that no real stack reaches.
    """

    NONE = "none"
    TWO_BATCH = "two-batch"
    FULL = "full"
