"""Whether a timed model's weights have zeros where the matrix engine can skip them."""

from enum import StrEnum


class Sparsity(StrEnum):
    """DENSE: no zeros that help. STRUCTURED: enough zeros in every group of a row's weights for the
    engine's sparse rate, which it has for 16-bit products; bytes are counted as for dense weights
    (assumed: how compressed weights lie in HBM is unpublished).
    """

    DENSE = "dense"
    STRUCTURED = "structured"
