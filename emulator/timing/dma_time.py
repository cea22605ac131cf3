"""Costs of DMA transfers beside their bytes: starts, and small sizes.

A chip's DMA rate is that of large transfers. Double buffering hides all starts of a layer but
EXPOSED_STARTS_PER_LAYER.
"""

from typing import Final

from emulator.specs.chip import ChipSpec

EXPOSED_STARTS_PER_LAYER: Final = 1  # assumed: the first transfer has nothing to hide behind
# Tokens of one page of a paged cache whose keys of one layer lie together; vLLM's default block.
PAGE_TOKENS: Final = 16
# Assumed: each transfer takes as long as this part of a saturating one before its first byte. On
# Trainium3 that is 256 bytes' time, and the guide calls transfers below 256 bytes severely bound by
# their overhead (AWS Neuron SDK docs, nki-dma-bandwidth-guide.rst).
OVERHEAD_SHARE: Final = 1 / 16


def transfer_efficiency(chip: ChipSpec, transfer_bytes: float) -> float:
    """The share of the achievable rate at transfers of `transfer_bytes`, in (0, 1].

    bytes / (bytes + overhead), scaled so that saturating transfers reach all of it.
    """
    saturating = chip.dma_saturating_bytes.value
    overhead = OVERHEAD_SHARE * saturating

    def reached(size: float) -> float:
        return size / (size + overhead)

    return min(1.0, reached(transfer_bytes) / reached(saturating))


def lost_share(chip: ChipSpec, transfer_bytes: float) -> float:
    """Time lost by small transfers, in bytes for each byte moved."""
    return 1 / transfer_efficiency(chip, transfer_bytes) - 1 if transfer_bytes > 0 else 0.0


def exposed_start_ns(chip: ChipSpec) -> float:
    """Exposed DMA start-up of one layer."""
    return EXPOSED_STARTS_PER_LAYER * chip.dma_start_ns.value
