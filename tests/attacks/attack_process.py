"""A process that attacks the target given on stdin.

`python -m tests.attacks.attack_process NAME SEED WALL_S` prints the answers in JSON.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace

from tests.attacks.attacker import NICENESS, attacked
from tests.attacks.catalog import ATTACKS
from tests.attacks.target import Target


def main(name: str, seed: int, wall_s: float) -> None:
    os.nice(NICENESS)
    target = Target(**json.load(sys.stdin))
    attack = ATTACKS[name]
    shortened = replace(attack, budget=replace(attack.budget, wall_s=wall_s))
    answers = asyncio.run(attacked(shortened, target, seed=seed))
    print(json.dumps(answers.plain()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
