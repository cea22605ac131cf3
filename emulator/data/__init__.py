"""Data that ships with the package: the small mixture-of-experts checkpoint.

What lies here is read by path, so that an installed package and a checkout serve the same bytes.
This module knows where the data is and nothing about what reads it.
"""

from pathlib import Path

SMALL_MOE_DIR: Path = Path(__file__).resolve().parent / "small_moe"
