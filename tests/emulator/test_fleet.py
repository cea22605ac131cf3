"""Live chips: four Ray actors compute what four chips in this process compute, and are gone after.

One fleet serves the whole file; the last test of it takes it down.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChannelError, CheckpointError
from emulator.fleet import Fleet
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from tests.emulator.chip.in_process import InProcessChips

pytestmark = pytest.mark.fleet

CHIPS = 4
KV_BLOCKS, BLOCK_TOKENS = 64, 32
VOCAB = 1024
PSS_BYTES_MAX = 120_000_000


def descendants() -> set[psutil.Process]:
    """The processes that this one has started, without those that have ended."""
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
    }


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Where fleets put their files. A short path, since Unix sockets lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="fleet-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def before() -> set[psutil.Process]:
    """The processes from before the fleet's start."""
    return descendants()


def start(fleet: Fleet, scratch: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        fleet.start()


@pytest.fixture(scope="module")
def fleet(before: set[psutil.Process], scratch: Path) -> Iterator[Fleet]:
    fleet = Fleet(
        weights_dir=SMALL_MOE_DIR, chips=CHIPS, kv_blocks=KV_BLOCKS, block_tokens=BLOCK_TOKENS
    )
    try:
        start(fleet, scratch)
        yield fleet
    finally:
        fleet.stop()


def request(name: str, tokens: int, first_block: int, sampling: SamplingSpec) -> NewRequest:
    rng = np.random.default_rng(tokens)
    return NewRequest(
        request_id=name,
        token_ids=rng.integers(300, VOCAB, tokens).tolist(),
        prompt_tokens=tokens,
        sampling=sampling,
        block_ids=list(range(first_block, first_block + 8)),
    )


GREEDY = SamplingSpec(temperature=0.0, logprobs=3)
RANDOM = SamplingSpec(temperature=1.0, seed=4, prompt_logprobs=2)
GRAMMAR = SamplingSpec(temperature=0.0, uses_grammar=True)


def first_steps() -> list[RankStep]:
    """Ranks 0, 1 and 3 begin with requests of several kinds; rank 2 has none."""
    steps = []
    for rank, sampling in ((0, GREEDY), (1, RANDOM), (3, GRAMMAR)):
        long = request(f"{rank}-long", 200 + rank, 1, sampling)
        short = request(f"{rank}-short", 5 + rank, 20, GREEDY)
        steps.append(
            RankStep(
                rank=rank,
                new=[long, short],
                scheduled=[
                    Scheduled(request_id=new.request_id, first_position=0, new_tokens=tokens)
                    for new in (long, short)
                    for tokens in [len(new.token_ids)]
                ],
                finished=[],
                grammar_rows=["3-long"] if rank == 3 else [],
            )
        )
    return steps


def decode_steps(steps: list[RankStep], made: int) -> list[RankStep]:
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


def assert_same(found: RankOutput, expected: RankOutput) -> None:
    assert (found.rank, found.request_ids) == (expected.rank, expected.request_ids)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    for mine, wanted in [
        (found.logprobs, expected.logprobs),
        *((found.prompt_logprobs[name], rows) for name, rows in expected.prompt_logprobs.items()),
    ]:
        assert (mine is None) == (wanted is None)
        if mine is not None and wanted is not None:
            assert mine.token_ids.tolist() == wanted.token_ids.tolist()
            assert mine.ranks.tolist() == wanted.ranks.tolist()
            assert (mine.logprobs == wanted.logprobs).all()


def test_actors_compute_the_bits_that_chips_in_one_process_compute(fleet: Fleet) -> None:
    machine = InProcessChips(
        SMALL_MOE_DIR, chips=CHIPS, kv_blocks=KV_BLOCKS, block_tokens=BLOCK_TOKENS
    )
    allowed = np.zeros((1, VOCAB // 32), dtype=np.int32)
    allowed[0, 700 // 32] = 1 << 700 % 32

    steps = first_steps()
    rounds = [(steps, {3: allowed})]
    rounds += [(decode_steps(steps, made), {}) for made in range(1, 4)]
    for given, bitmasks in rounds:
        found, expected = fleet.step(given, bitmasks), machine.step(given, bitmasks)
        assert sorted(found) == [0, 1, 3]
        for rank, output in expected.items():
            assert_same(found[rank], output)
        if bitmasks:
            assert found[3].token_ids[0] == 700
            assert list(found[1].prompt_logprobs) == ["1-long"]


def test_a_step_in_which_no_rank_has_a_token_is_heard_by_all(fleet: Fleet) -> None:
    steps = [
        RankStep(rank=rank, new=[], scheduled=[], finished=[f"{rank}-long", f"{rank}-short"])
        for rank in range(CHIPS)
    ]

    outputs = fleet.step(steps, {})

    assert {rank: output.request_ids for rank, output in outputs.items()} == {
        rank: [] for rank in range(CHIPS)
    }


def test_it_knows_its_architecture_and_what_its_chips_cost_the_host(fleet: Fleet) -> None:
    memory = fleet.memory()
    print("chip processes:", ", ".join(f"{m.pss_bytes / 1e6:.0f} MB" for m in memory))

    assert fleet.architecture.experts == 144
    assert len(memory) == CHIPS
    assert all(10_000_000 < m.pss_bytes < PSS_BYTES_MAX for m in memory)
    assert all(m.pss_bytes <= m.rss_bytes for m in memory)
    assert fleet.cpu_s() > 0


def test_a_fleet_that_is_well_says_nothing(fleet: Fleet) -> None:
    fleet.check()


def test_lost_chips_are_channel_errors_and_stopping_leaves_nothing(
    fleet: Fleet, before: set[psutil.Process], scratch: Path
) -> None:
    unknown = Scheduled(request_id="nobody", first_position=0, new_tokens=1)
    failing = RankStep(rank=2, new=[], scheduled=[unknown], finished=[])
    with pytest.raises(ChannelError, match=r"(?s)chip 2 failed.*nobody"):
        fleet.step([failing], {})
    with pytest.raises(ChannelError, match="chip 2 has stopped serving"):
        fleet.check()

    started = descendants() - before
    actors = [process for process in started if "ChipActor" in " ".join(process.cmdline())]
    assert len(actors) == CHIPS
    for process in actors:
        process.kill()
    with pytest.raises(ChannelError, match="a chip does not answer"):
        fleet.check()
    with pytest.raises(ChannelError, match="chip 0"):
        fleet.step([RankStep(rank=0, new=[], scheduled=[], finished=[])], {})

    assert list(scratch.glob("ultraserve-ray-*")) != []
    fleet.stop()
    fleet.stop()

    assert descendants() - before == set()
    assert list(scratch.glob("ultraserve*")) == []


def test_a_chip_that_cannot_start_is_a_channel_error_and_leaves_nothing(
    before: set[psutil.Process], scratch: Path
) -> None:
    too_large = Fleet(weights_dir=SMALL_MOE_DIR, chips=1, kv_blocks=10**12, block_tokens=32)

    with pytest.raises(ChannelError, match="did not start"):
        start(too_large, scratch)

    assert descendants() - before == set()
    assert list(scratch.glob("ultraserve*")) == []


def test_a_checkpoint_that_cannot_be_computed_is_told_before_anything_starts(
    before: set[psutil.Process], scratch: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Fleet(weights_dir=tmp_path, chips=1, kv_blocks=8, block_tokens=32)

    assert descendants() - before == set()


def test_stopping_a_fleet_that_never_started_does_nothing() -> None:
    Fleet(weights_dir=SMALL_MOE_DIR, chips=1, kv_blocks=8, block_tokens=32).stop()
