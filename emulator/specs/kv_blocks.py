"""Keys and values as chips hand them out."""

from dataclasses import dataclass

from emulator.arrays import Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlocks:
    """Blocks of all layers, in the layout of the KV cache (`PagedKv.read_blocks`)."""

    keys: Float32s
    values: Float32s
