"""The bytes of a safetensors file whose tensors are BF16.

The safetensors library writes BF16 only from frameworks that have it, and changed its interface
between versions.
"""

import json
from collections.abc import Mapping

import numpy as np

from emulator.arrays import Float32s


def bfloat16_bytes(values: Float32s) -> bytes:
    """Return the values as little-endian BF16, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype("<u2").tobytes()


def safetensors_bytes(tensors: Mapping[str, Float32s]) -> bytes:
    """Return a safetensors file of the tensors, rounded to BF16, in name order.

    The format: the header's length (8 bytes, little-endian), a JSON header padded with spaces to a
    multiple of 8 bytes, then the tensors without gaps.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        blob = bfloat16_bytes(tensors[name])
        shape, span = list(tensors[name].shape), [offset, offset + len(blob)]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": span}
        blobs.append(blob)
        offset += len(blob)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return b"".join([len(encoded).to_bytes(8, "little"), encoded, *blobs])
