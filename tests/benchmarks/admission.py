"""What admission lets in, beside the best that any admission could have let in, by load.

vLLM's schedulers and the cost model in virtual time; see
`tests.serving.policy.admission.admission_bar` for what the best is taken to be. Exit code 1 when a
cell misses the bar: 95 % of the best's work, and a p99 of the time to the first token within the
target.

    python -m tests.benchmarks admission [--oracle] [NAME ...]
"""

import argparse
import logging
import sys
import time

from tests.serving.policy.admission.admission_bar import HEADER, Setting
from tests.serving.policy.admission.virtual_clients import Mix

SHARE_MIN = 0.95
TIMES = (0.5, 0.9, 1.5, 5.0)

EQUAL = Mix(name="512 in, 64 out", prompt_tokens=512, answer_tokens=64)
CHAT = Mix(
    name="chats",
    prompt_tokens=400,
    prompt_spread=0.8,
    answer_tokens=120,
    answer_spread=0.7,
    asked_tokens=1_024,
)
LONG = Mix(name="long prompts", prompt_tokens=4_000, prompt_spread=0.5, answer_tokens=100)

SETTINGS = (
    Setting(name="equal", mix=EQUAL),
    Setting(name="chats", mix=CHAT),
    Setting(name="closed", mix=EQUAL, closed=True),
    Setting(name="retries", mix=CHAT, comes_back=3),
    Setting(name="seats", mix=CHAT, seats=32),
    Setting(name="ranks", mix=CHAT, chips=4),
    Setting(name="long", mix=LONG, target_s=2.0),
    Setting(name="patient", mix=CHAT, target_s=2.5),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="admission", description=__doc__)
    parser.add_argument("--oracle", action="store_true", help="search with clones too: minutes")
    parser.add_argument("names", nargs="*", metavar="NAME", help="settings (default: all)")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    missed = 0
    for setting in SETTINGS:
        if args.names and setting.name not in args.names:
            continue
        began_s = time.monotonic()
        print(
            f"\n{setting.name}: {setting.mix.name}, {setting.chips} chips of {setting.seats} seats,"
            f" target {setting.target_s:g} s; capacity {setting.capacity_per_s:.1f} requests/s"
        )
        print(HEADER, flush=True)
        for times in TIMES:
            for warm in (False, True):
                cell = setting.measure(times, warm=warm, oracle=args.oracle)
                missed += not cell.holds(SHARE_MIN)
                print(cell.line(), flush=True)
        print(f"{time.monotonic() - began_s:.0f} s of wall time")
    print(f"\n{missed} cells miss the bar")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
