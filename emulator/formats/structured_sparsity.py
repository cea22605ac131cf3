"""Structured sparsity: at most 4 of 8 or of 16 neighbours in the contraction are not zero.

The array is given the kept weights and their places, and picks the operands that they need (AWS
Neuron SDK docs, neuron-core-v4.rst). Published for 16-bit numbers alone: operands are BF16.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.formats.array_products import PARTITIONS, array_product
from emulator.formats.minifloat import BF16, Uint8s


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsePattern:
    """`kept` weights of every `of`."""

    kept: int
    of: int

    @property
    def depth(self) -> int:
        """Rows of the contraction in a tile, whose kept weights fill the array's partitions."""
        return PARTITIONS * self.of // self.kept


FOUR_OF_8: Final = SparsePattern(kept=4, of=8)
FOUR_OF_16: Final = SparsePattern(kept=4, of=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseWeights:
    """The kept weights of a matrix [..., inner, columns], in BF16.

    Attributes:
        values: [..., groups, kept, columns].
        places: likewise, each value's place in its group; ascending within a group.
    """

    pattern: SparsePattern
    inner: int
    values: Float32s
    places: Uint8s

    def dense(self) -> Float32s:
        """The matrix with zeros, [..., inner, columns]."""
        *outer, groups, _, columns = self.values.shape
        whole = np.zeros((*outer, groups, self.pattern.of, columns), dtype=np.float32)
        np.put_along_axis(whole, self.places.astype(np.int64), self.values, axis=-2)
        return whole.reshape(*outer, -1, columns)[..., : self.inner, :]


def compress(weights: Float32s, pattern: SparsePattern) -> SparseWeights:
    """Keep the largest magnitudes of each group of `weights` [..., inner, columns], as BF16.

    Of equal ones the first are kept. A last group that is not whole is filled with zeros.
    """
    *outer, inner, columns = weights.shape
    groups = -(-inner // pattern.of)
    whole = np.zeros((*outer, groups * pattern.of, columns), dtype=np.float32)
    whole[..., :inner, :] = BF16.rounded(weights)
    grouped = whole.reshape(*outer, groups, pattern.of, columns)
    largest_first: Int64s = np.argsort(-np.abs(grouped), axis=-2, kind="stable")
    places = np.sort(largest_first[..., : pattern.kept, :], axis=-2)
    return SparseWeights(
        pattern=pattern,
        inner=inner,
        values=np.take_along_axis(grouped, places, axis=-2),
        places=places.astype(np.uint8),
    )


def sparse_product(rows: Float32s, weights: SparseWeights) -> Float32s:
    """Multiply BF16 `rows` [..., height, inner]: [..., height, columns].

    A weight that is not kept adds zero, which leaves a sum's bits as they are.
    """
    return array_product(rows, weights.dense(), depth=weights.pattern.depth)


def sparse_product_slowly(rows: Float32s, weights: SparseWeights) -> Float32s:
    """The slow reference of `sparse_product`: kept weights alone, by their places.

    BF16 products that lie within float32's normal numbers; `rows` and values without outer axes.
    """
    pattern = weights.pattern
    groups, kept, columns = weights.values.shape
    total = np.zeros((len(rows), columns), dtype=np.float32)
    groups_in_tile = pattern.depth // pattern.of
    for start in range(0, groups, groups_in_tile):
        running = np.zeros_like(total)
        for group in range(start, min(start + groups_in_tile, groups)):
            for slot in range(kept):
                places = group * pattern.of + weights.places[group, slot].astype(np.int64)
                # A group that was filled up may keep zeros beyond the last row.
                picked = rows[:, np.minimum(places, weights.inner - 1)]  # [rows, columns]
                running += picked * weights.values[group, slot]
        total += running
    return total
