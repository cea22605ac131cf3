"""How far the exchange of tokens hides behind computing, by the field's names."""

from enum import StrEnum


class Overlap(StrEnum):
    """NONE: a layer's exchanges wait for its computing. TWO_BATCH: the step's tokens are run as two
    halves, and one half computes while the other is exchanged. FULL: all communication hides behind
    computing as far as there is any, a bound that no real stack reaches.
    """

    NONE = "none"
    TWO_BATCH = "two-batch"
    FULL = "full"
