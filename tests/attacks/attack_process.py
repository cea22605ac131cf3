"""A process that attacks: `python -m tests.attacks.attack_process NAME SEED`, the target on stdin.

Says "begun" in a line, attacks, and says what it heard in JSON.
"""

import asyncio
import json
import os
import sys

from tests.attacks.attacker import NICENESS, attacked
from tests.attacks.catalog import ATTACKS
from tests.attacks.target import Target


def main(name: str, seed: int) -> None:
    """Attack once."""
    os.nice(NICENESS)
    target = Target(**json.load(sys.stdin))
    print("begun", flush=True)
    answers = asyncio.run(attacked(ATTACKS[name], target, seed=seed))
    print(json.dumps(answers.plain()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
