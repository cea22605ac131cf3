"""Data that ships with the package: the small mixture-of-experts checkpoints.

What lies here is read by path, so that an installed package and a checkout serve the same bytes.
This module knows where the data is and nothing about what reads it.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

_HERE: Final = Path(__file__).resolve().parent

SMALL_MOE_DIR: Final = _HERE / "small_moe"
"""Random weights, whose text reads back as the tokens that it was made of."""

SMALL_MOE_TRAINED_DIR: Final = _HERE / "small_moe_trained"
"""The same architecture, trained; `training.json` in it says how."""

BUNDLED_WEIGHTS: Final[Mapping[str, Path]] = MappingProxyType(
    {"small-moe": SMALL_MOE_DIR, "small-moe-trained": SMALL_MOE_TRAINED_DIR}
)


def weights_directory(name: str) -> Path:
    """The directory of bundled weights of this name, or the directory of this path."""
    return BUNDLED_WEIGHTS.get(name, Path(name))


def weights_name(directory: Path) -> str:
    """Name of the weights in `directory`: their bundled name, or the directory's own."""
    names = {path: name for name, path in BUNDLED_WEIGHTS.items()}
    found = directory.resolve()
    return names.get(found, found.name)
