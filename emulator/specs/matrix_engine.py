"""A matrix engine's costs beside a product's flops.

A product keeps a tile of weights still and streams rows of activations past it. Few rows cost as
much as `moving_rows_min`, a partial tile as much as a full one.
"""

from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.specs.figure import Figure, NamedFigures, figures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixEngine:
    """The engine of one core; raises ConfigError for a figure of the wrong sign.

    Attributes:
        tile_rows: contraction elements of one weight tile; `mx_tile_rows` in block-scaled formats.
        tile_columns: outputs of one weight tile.
        moving_rows_min: least rows of activations charged per issue.
        sub_arrays: parts of the array that can hold separate tiles of narrow products.
        fill_drain_ns: from a product's first row to its first result, and again until it is empty.
        ramp_share: of the peak rate after an idle spell; all of it after `ramp_ns`.
    """

    tile_rows: Figure
    mx_tile_rows: Figure
    tile_columns: Figure
    moving_rows_min: Figure
    sub_arrays: Figure
    fill_drain_ns: Figure
    ramp_share: Figure
    ramp_ns: Figure

    def __post_init__(self) -> None:
        may_be_zero = ("fill_drain_ns", "ramp_ns")
        for label, figure in self.figures():
            if figure.value < 0 or (figure.value == 0 and label not in may_be_zero):
                raise ConfigError(label, figure.value, ">= 0" if label in may_be_zero else "> 0")
        if self.ramp_share.value > 1:
            raise ConfigError("ramp_share", self.ramp_share.value, "above 0, at most 1")

    def figures(self) -> NamedFigures:
        """Every figure by its name."""
        return figures_of(self)
