"""Asks a Ray cluster without a token: `python -m emulator.actors.tokenless_call HOST:PORT`.

A program of its own, because a process has one Ray with one token. Its exit code is the answer.
"""

import sys
from typing import Final

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.exceptions import AuthenticationError

ANSWERED: Final = 10
"""The cluster answers without a token."""

TOKEN_WANTED: Final = 11


def main(address: str) -> int:
    """Connect and ask for the cluster's name; raises Ray's error where no cluster answers."""
    try:
        GcsClient(address=address)
    except AuthenticationError:
        return TOKEN_WANTED
    return ANSWERED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
