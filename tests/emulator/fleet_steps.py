"""Steps for live chips of the bundled model, and the fleets' processes."""

import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from ray._private.state import actors

from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from emulator.specs.placement import ExpertPlacement
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from tests.emulator.chip.in_process import InProcessChips

KV_BLOCKS, BLOCK_TOKENS = 64, 32
LAYERS, EXPERTS, VOCAB = 4, 144, 1024

GREEDY = SamplingSpec(temperature=0.0, logprobs=3)
RANDOM = SamplingSpec(temperature=1.0, seed=4, prompt_logprobs=2)
GRAMMAR = SamplingSpec(temperature=0.0, uses_grammar=True)


def even_placement(chips: int) -> ExpertPlacement:
    return ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=chips, ep=chips)


def make_fleet(chips: int, *, tp: int = 1, slots_max: int = 0) -> Fleet:
    return Fleet(
        weights_dir=SMALL_MOE_DIR,
        placement=even_placement(chips),
        tp=tp,
        kv_blocks=KV_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        slots_max=slots_max,
    )


def in_process(chips: int, *, tp: int = 1) -> InProcessChips:
    return InProcessChips(
        SMALL_MOE_DIR, chips=chips, tp=tp, kv_blocks=KV_BLOCKS, block_tokens=BLOCK_TOKENS
    )


def start(fleet: Fleet, scratch: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        fleet.start()


def descendants() -> set[psutil.Process]:
    """Living descendants of this process."""
    return {process for process in psutil.Process().children(recursive=True) if is_running(process)}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_of(processes: Iterable[psutil.Process], wait_s: float = 30.0) -> list[psutil.Process]:
    """Those that still run after a while. One that has ended may wait long for init to see it."""
    end_s = time.monotonic() + wait_s
    while (left := [each for each in processes if is_running(each)]) and time.monotonic() < end_s:
        time.sleep(0.05)  # polls other processes
    return left


def process_of(fleet: Fleet, chip: int) -> psutil.Process:
    actor_id = fleet._processes._process_of[chip].actor._actor_id.hex()
    return psutil.Process(actors(actor_id)["Pid"])


def request(name: str, tokens: int, first_block: int, sampling: SamplingSpec) -> NewRequest:
    """A prompt determined by its length."""
    rng = np.random.default_rng(tokens)
    blocks = -(-(tokens + 32) // BLOCK_TOKENS)
    return NewRequest(
        request_id=name,
        token_ids=rng.integers(300, VOCAB, tokens).tolist(),
        prompt_tokens=tokens,
        sampling=sampling,
        block_ids=list(range(first_block, first_block + blocks)),
    )


def prefill_steps(kinds: Iterable[tuple[int, SamplingSpec]], *, tokens: int) -> list[RankStep]:
    """For each (rank, sampling), a prompt of some `tokens` of that kind and a short greedy one."""
    steps = []
    for rank, sampling in kinds:
        new = [
            request(f"{rank}-long", tokens + rank, 1, sampling),
            request(f"{rank}-short", 5 + rank, 60, GREEDY),
        ]
        steps.append(
            RankStep(
                rank=rank,
                new=new,
                scheduled=[
                    Scheduled(
                        request_id=each.request_id,
                        first_position=0,
                        new_tokens=len(each.token_ids),
                    )
                    for each in new
                ],
                finished=[],
                grammar_rows=[f"{rank}-long"] if sampling.uses_grammar else [],
            )
        )
    return steps


def decode_steps(steps: Sequence[RankStep], made: int) -> list[RankStep]:
    """One more token of every request, `made` tokens after its prompt."""
    return [
        RankStep(
            rank=step.rank,
            new=[],
            scheduled=[
                Scheduled(
                    request_id=item.request_id,
                    first_position=item.new_tokens + made - 1,
                    new_tokens=1,
                )
                for item in step.scheduled
            ],
            finished=[],
        )
        for step in steps
    ]


def last_steps(steps: Sequence[RankStep]) -> list[RankStep]:
    return [
        RankStep(
            rank=step.rank,
            new=[],
            scheduled=[],
            finished=[item.request_id for item in step.scheduled],
        )
        for step in steps
    ]


def assert_same(found: RankOutput, expected: RankOutput) -> None:
    """Assert the same tokens, and bitwise equal log-probabilities."""
    assert (found.rank, found.request_ids) == (expected.rank, expected.request_ids)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.prompt_logprobs.keys() == expected.prompt_logprobs.keys()
    for mine, wanted in [
        (found.logprobs, expected.logprobs),
        *((found.prompt_logprobs[name], rows) for name, rows in expected.prompt_logprobs.items()),
    ]:
        assert (mine is None) == (wanted is None)
        if mine is not None and wanted is not None:
            assert mine.token_ids.tolist() == wanted.token_ids.tolist()
            assert mine.ranks.tolist() == wanted.ranks.tolist()
            assert (mine.logprobs == wanted.logprobs).all()
