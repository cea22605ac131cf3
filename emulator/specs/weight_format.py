"""Storage formats of weights, and a matrix's bytes in each, which set HBM use and reading time."""

from enum import StrEnum

_FP8_BLOCK = 128
_MX_BLOCK = 32
_NVFP4_BLOCK = 16
_FP32_BYTES = 4


class WeightFormat(StrEnum):
    """Storage of one matrix.

    FP8_BLOCK128: one byte each, with an FP32 scale for every block of 128 x 128 (DeepSeek-V3's
    checkpoints). MXFP8: one byte each, with an E8M0 byte for every 32 elements of a row (OCP
    Microscaling): 8.25 bits. MXFP4: likewise, four bits each (gpt-oss's experts): 4.25 bits.
    NVFP4: four bits each, with an E4M3 byte for every 16 elements of a row (NVIDIA, "Introducing
    NVFP4"): 4.5 bits, without a tensor's one FP32 scale.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP8_BLOCK128 = "fp8-block128"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix with its scales; a partial block has a whole scale."""
        elements = rows * columns
        match self:
            case WeightFormat.FP32:
                return _FP32_BYTES * elements
            case WeightFormat.BF16:
                return 2 * elements
            case WeightFormat.FP8_BLOCK128:
                blocks = -(-rows // _FP8_BLOCK) * -(-columns // _FP8_BLOCK)
                return elements + _FP32_BYTES * blocks
        block = _NVFP4_BLOCK if self is WeightFormat.NVFP4 else _MX_BLOCK
        return rows * (-(-columns * self.bits_per_element // 8) + -(-columns // block))

    @property
    def bits_per_element(self) -> int:
        """Bits of one weight without its scales."""
        return {
            WeightFormat.FP32: 32,
            WeightFormat.BF16: 16,
            WeightFormat.FP8_BLOCK128: 8,
            WeightFormat.MXFP8: 8,
        }.get(self, 4)

    @property
    def is_low_precision(self) -> bool:
        """Whether products have quantised operands: fewer than 16 bits."""
        return self.bits_per_element < 16

    @property
    def described(self) -> str:
        """The format in words, for printing."""
        return {
            WeightFormat.FP32: "FP32",
            WeightFormat.BF16: "BF16",
            WeightFormat.FP8_BLOCK128: "FP8 (E4M3) with an FP32 scale per block of 128 x 128",
            WeightFormat.MXFP8: "MXFP8 (E4M3) with an E8M0 scale per 32 elements",
            WeightFormat.MXFP4: "MXFP4 (E2M1) with an E8M0 scale per 32 elements",
            WeightFormat.NVFP4: "NVFP4 (E2M1) with an E4M3 scale per 16 elements",
        }[self]
