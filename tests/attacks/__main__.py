"""Attacks a server of its own, on loopback alone: `python -m tests.attacks [--only NAME ...]`.

Ends with 0 when the server stood every attack, 1 when it did not, 2 for a name that no attack has.
SECURITY.md says what it has to stand.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.attacks.catalog import ATTACKS
from tests.attacks.run import run


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="say which attacks there are")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="attacks, or beginnings of their names"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is random (default: 0)")
    asked = parser.parse_args(arguments)
    if asked.list:
        for attack in ATTACKS.values():
            print(f"{attack.name:26}  {'key' if attack.needs_key else '   '}  {attack.what}")
        return 0
    for name in asked.only or ():
        if not any(known.startswith(name) for known in ATTACKS):
            print(f"--only: expected names that --list shows, got {name!r}", file=sys.stderr)
            return 2
    chosen = [
        attack
        for attack in ATTACKS.values()
        if not asked.only or attack.name.startswith(tuple(asked.only))
    ]
    # A server of ours has a session of its own: it is ended by us alone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run(chosen, seed=asked.seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
