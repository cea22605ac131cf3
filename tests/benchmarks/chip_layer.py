"""CPU time of one chip of four, computing a step of the bundled model in this process.

By command, without messages: a decode of so many requests, whose tokens' experts come back as
noise, beside as many pairs for this chip's own experts; and a prefill of one prompt.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import time
from collections import defaultdict

import numpy as np

from emulator.chip.chip import Chip
from emulator.chip.chip_share import ChipShare, load_chip
from emulator.chip.commands import NO_BITMASK, BeginStep, Combine, RunExperts
from emulator.chip.effects import Dispatch
from emulator.data import SMALL_MOE_DIR
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled

ROWS = (1, 4, 16, 64)
CONTEXTS = (64, 10_000)
PROMPTS = (64, 2_000)
STEPS = 60
BLOCK_TOKENS, SLOTS = 32, 36


class ChipLoad:
    """Steps of `rows` requests of `tokens` each on a chip, and their CPU seconds by command."""

    def __init__(self, chip: Chip, rows: int, tokens: int) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._chip = chip
        self._rng = np.random.default_rng(0)
        each = -(-(tokens + STEPS + 2) // BLOCK_TOKENS)
        self._new = [
            NewRequest(
                request_id=f"{rows}-{tokens}-{row}",
                token_ids=[300 + (13 * token + 7 * row) % 700 for token in range(tokens)],
                prompt_tokens=tokens,
                sampling=SamplingSpec(temperature=0.0),
                block_ids=list(range(1 + row * each, 1 + (row + 1) * each)),
            )
            for row in range(rows)
        ]
        self._position = 0

    def step(self, tokens: int) -> None:
        """Compute so many tokens of every request."""
        names = [new.request_id for new in self._new]
        step = RankStep(
            rank=0,
            new=[] if self._position else self._new,
            scheduled=[
                Scheduled(request_id=name, first_position=self._position, new_tokens=tokens)
                for name in names
            ],
            finished=[],
        )
        self._position += tokens
        command: BeginStep | Combine = BeginStep(step=step, grammar_bitmask=NO_BITMASK)
        while isinstance(effect := self._timed(command), Dispatch):
            slots = np.sort(self._rng.integers(0, SLOTS, effect.chosen.size))
            self._timed(
                RunExperts(
                    layer=effect.layer,
                    rows=effect.hidden,
                    row_of_pair=self._rng.integers(0, len(effect.hidden), len(slots)),
                    counts=np.bincount(slots, minlength=SLOTS),
                )
            )
            shape = (*effect.chosen.shape, effect.hidden.shape[1])
            noise = 0.1 * self._rng.standard_normal(shape, dtype=np.float32)
            command = Combine(layer=effect.layer, expert_rows=noise)

    def finish(self) -> None:
        """Forget the requests."""
        names = [new.request_id for new in self._new]
        step = RankStep(rank=0, new=[], scheduled=[], finished=names)
        self._chip.handle(BeginStep(step=step, grammar_bitmask=NO_BITMASK))

    def _timed(self, command: BeginStep | Combine | RunExperts) -> object:
        started = time.process_time()
        effect = self._chip.handle(command)
        name = type(command).__name__
        if isinstance(command, Combine) and not isinstance(effect, Dispatch):
            name = "last Combine"
        self.seconds[name].append(time.process_time() - started)
        return effect

    def microseconds(self, name: str) -> float:
        """The fastest tenth of the commands, that others on the host disturb least."""
        return float(np.quantile(self.seconds[name], 0.1)) * 1e6


def run() -> None:
    experts = [list(range(SLOTS))] * 4
    chip = load_chip(
        ChipShare(
            weights_dir=str(SMALL_MOE_DIR),
            experts=experts,
            kv_blocks=2_000,
            block_tokens=BLOCK_TOKENS,
        )
    )
    names = ("BeginStep", "Combine", "last Combine", "RunExperts")
    print("microseconds of CPU by command; a layer is a Combine and RunExperts")
    print(f"{'requests':>8} {'context':>8}", *(f"{name:>13}" for name in (*names, "layer")))
    for context in CONTEXTS:
        for rows in ROWS if context == CONTEXTS[0] else ROWS[:1]:
            load = ChipLoad(chip, rows, context)
            load.step(context)
            load.seconds.clear()
            for _ in range(STEPS):
                load.step(1)
            load.finish()
            took = [load.microseconds(name) for name in names]
            took.append(took[1] + took[3])
            print(f"{rows:>8} {context:>8}", *(f"{each:>13.0f}" for each in took))
    print("microseconds of CPU a token and step, of one prompt")
    for tokens in PROMPTS:
        walls = []
        for _ in range(5 if tokens < 1_000 else 2):
            load = ChipLoad(chip, 1, tokens)
            load.step(tokens)
            load.finish()
            walls.append(sum(map(sum, load.seconds.values())))
        print(f"{tokens:>8} {min(walls) / tokens * 1e6:>8.1f}")


if __name__ == "__main__":
    run()
