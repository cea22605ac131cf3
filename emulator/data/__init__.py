"""Data that ships with the package: the small mixture-of-experts checkpoints.

Files are read by path, so that an installed package and a checkout serve the same bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

_HERE: Final = Path(__file__).resolve().parent

SMALL_MOE_DIR: Final = _HERE / "small_moe"
"""Random weights, whose text encodes back to the tokens that it came from."""

SMALL_MOE_TRAINED_DIR: Final = _HERE / "small_moe_trained"
"""The same architecture, trained as its `training.json` says."""

BUNDLED_WEIGHTS: Final[Mapping[str, Path]] = MappingProxyType(
    {"small-moe": SMALL_MOE_DIR, "small-moe-trained": SMALL_MOE_TRAINED_DIR}
)


def weights_directory(name: str) -> Path:
    """The directory of bundled weights by name, or any other directory by path."""
    return BUNDLED_WEIGHTS.get(name, Path(name))


def weights_name(directory: Path) -> str:
    """The bundled name of the weights in `directory`, or the directory's own."""
    names = {path: name for name, path in BUNDLED_WEIGHTS.items()}
    found = directory.resolve()
    return names.get(found, found.name)
