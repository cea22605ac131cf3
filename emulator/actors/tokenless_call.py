"""Asks a Ray cluster without a token: `python -m emulator.actors.tokenless_call HOST:PORT`.

A separate program, because a process has one Ray with one token. The exit code is the answer.
"""

import sys
from typing import Final

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.exceptions import AuthenticationError

ANSWERED: Final = 10
"""The cluster answers without a token."""

TOKEN_WANTED: Final = 11


def main(address: str) -> int:
    """Connect to the cluster; raises Ray's error where none answers."""
    try:
        GcsClient(address=address)
    except AuthenticationError:
        return TOKEN_WANTED
    return ANSWERED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
