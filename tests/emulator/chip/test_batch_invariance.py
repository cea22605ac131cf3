"""The bits of a token do not depend on how it came to be computed.

One request's logits are the same in one prefill, in chunks, as decodes, among others, in other
blocks, on other numbers of chips, after a preemption, on a shared prefix and on another rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, InProcessChips, serve

NEW_TOKENS = 5
BLOCK_TOKENS = 16
SEEDED = SamplingSpec(temperature=1.0, seed=11, top_p=0.95, repetition_penalty=1.1)
NAMES = ("wide_heads", "one_kv_head", "sharp_attention")


@dataclass(frozen=True)
class Alone:
    """What a request gives when it is computed alone, in one prefill, on one chip."""

    prompt: list[int]
    sampling: SamplingSpec
    text: list[int]
    logits: np.ndarray


def alone(directory: Path, prompt: list[int], sampling: SamplingSpec = GREEDY) -> Alone:
    machine = InProcessChips(directory, chips=1, block_tokens=BLOCK_TOKENS)
    text = serve(machine, {"one": prompt}, new_tokens=NEW_TOKENS, sampling=sampling)["one"]
    return Alone(prompt, sampling, text, machine.rows("one"))


class TestEachWay:
    """One way at a time, so that a failure says which."""

    @pytest.fixture(scope="class", params=[*NAMES, "small_moe", "as_many_kv_heads"])
    def directory(
        self, request: pytest.FixtureRequest, small_checkpoints: Mapping[str, Path]
    ) -> Path:
        return small_checkpoints[request.param]

    @pytest.fixture(scope="class")
    def expected(self, directory: Path) -> Alone:
        return alone(directory, np.random.default_rng(2).integers(0, 200, 300).tolist())

    @pytest.mark.long
    @pytest.mark.parametrize("chunk_tokens", [1, 3, 16, 64, 65, 100, 299])
    def test_a_prefill_in_chunks(self, directory: Path, expected: Alone, chunk_tokens: int) -> None:
        prompt = expected.prompt[:70] if chunk_tokens == 1 else expected.prompt
        machine = InProcessChips(directory, chips=1, block_tokens=BLOCK_TOKENS)

        texts = serve(machine, {"one": prompt}, new_tokens=NEW_TOKENS, chunk_tokens=chunk_tokens)

        assert (machine.rows("one")[: len(prompt)] == expected.logits[: len(prompt)]).all()
        if prompt == expected.prompt:
            assert texts["one"] == expected.text
            assert (machine.rows("one") == expected.logits).all()

    @pytest.mark.long
    @pytest.mark.parametrize("chips", [2, 4])
    @pytest.mark.parametrize("chunk_tokens", [100_000, 37])
    def test_on_any_number_of_chips_among_others(
        self, directory: Path, expected: Alone, chips: int, chunk_tokens: int
    ) -> None:
        rng = np.random.default_rng(chips)
        prompts = {
            f"other-{i}": rng.integers(0, 200, int(rng.integers(1, 150))).tolist() for i in range(5)
        }
        prompts["one"] = expected.prompt
        machine = InProcessChips(directory, chips=chips, block_tokens=BLOCK_TOKENS)

        texts = serve(machine, prompts, new_tokens=NEW_TOKENS, chunk_tokens=chunk_tokens)

        assert texts["one"] == expected.text
        assert (machine.rows("one") == expected.logits).all()

    @pytest.mark.long
    @pytest.mark.parametrize("block_tokens", [8, 32, 128])
    def test_in_shuffled_blocks_of_any_size(
        self, directory: Path, expected: Alone, block_tokens: int
    ) -> None:
        machine = InProcessChips(directory, chips=1, block_tokens=block_tokens, kv_blocks=99)

        texts = serve(
            machine,
            {"other": expected.prompt[50:], "one": expected.prompt},
            new_tokens=NEW_TOKENS,
            shuffle=np.random.default_rng(0),
        )

        assert texts["one"] == expected.text
        assert (machine.rows("one") == expected.logits).all()

    @pytest.mark.long
    def test_a_position_far_along_when_its_context_is_decoded(
        self, directory: Path, expected: Alone
    ) -> None:
        # As a prefix found in the cache: everything but the last token is there already.
        machine = InProcessChips(directory, chips=1, block_tokens=BLOCK_TOKENS)
        blocks = list(range(1, 21))

        def request(name: str) -> NewRequest:
            return NewRequest(
                request_id=name,
                token_ids=expected.prompt,
                prompt_tokens=len(expected.prompt),
                sampling=GREEDY,
                block_ids=blocks,
            )

        for name, first in (("first", 0), ("second", 256), ("third", 299)):
            output = machine.step(
                [
                    RankStep(
                        rank=0,
                        new=[request(name)],
                        scheduled=[
                            Scheduled(request_id=name, first_position=first, new_tokens=300 - first)
                        ],
                        finished=[],
                    )
                ]
            )[0]
            assert output.token_ids.tolist() == expected.text[:1]
            (chip,) = machine.chips
            assert (chip.rows[name, 299][0] == expected.logits[299]).all()


# What may happen to a request in one step: nothing, some of its tokens are computed, or its blocks
# are taken away (all but a few), its last block is copied, it moves to another rank.
Move = tuple[Literal["wait", "compute", "preempt", "copy", "move"], int]
moves: st.SearchStrategy[Move] = st.one_of(
    st.tuples(st.just("wait"), st.just(0)),
    st.tuples(st.just("compute"), st.sampled_from([1, 2, 5, 16, 33, 64, 90, 400])),
    st.tuples(st.just("preempt"), st.integers(0, 8)),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 3)),
)


@dataclass
class Request:
    """One request in a schedule. `table` holds its blocks, `told` what its chip knows of them."""

    name: str
    expected: Alone
    rank: int
    text: list[int] = field(default_factory=list)
    computed: int = 0
    table: list[int] = field(default_factory=list)
    known_on: int | None = None
    told_blocks: int = 0
    replaces: bool = False
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [*self.expected.prompt, *self.text]

    @property
    def done(self) -> bool:
        return len(self.text) == NEW_TOKENS


class Scheduler:
    """Plays moves on a machine, with the bookkeeping of blocks that vLLM has."""

    def __init__(self, machine: InProcessChips, requests: list[Request], seed: int) -> None:
        self._machine = machine
        self._requests = requests
        self._rng = np.random.default_rng(seed)
        self._free = [list(range(1, machine.kv_blocks)) for _ in machine.chips]
        self._leavers: list[tuple[int, str]] = []

    def play(self, rounds: list[list[Move]]) -> None:
        """One step for each round, then computing until every text is complete."""
        for round_ in rounds:
            chosen = [
                self._apply(request, move)
                for request, move in zip(self._requests, round_, strict=False)
                if not request.done
            ]
            self._step([entry for entry in chosen if entry is not None])
        while left := [request for request in self._requests if not request.done]:
            self._step([(request, len(request.tokens) - request.computed) for request in left])

    def _apply(self, request: Request, move: Move) -> tuple[Request, int] | None:
        kind, amount = move
        if kind == "compute":
            return request, min(amount, len(request.tokens) - request.computed)
        if kind == "preempt":
            self._shrink(request, amount)
        elif kind == "copy" and request.computed % BLOCK_TOKENS:
            self._copy_last_block(request)
        elif kind == "move" and amount % len(self._machine.chips) != request.rank:
            self._move(request, amount % len(self._machine.chips))
        return None

    def _shrink(self, request: Request, kept_blocks: int) -> None:
        """Give back all blocks but the first few full ones; the request resumes from there."""
        kept = min(kept_blocks, request.computed // BLOCK_TOKENS)
        self._free[request.rank] += request.table[kept:]
        request.table = request.table[:kept]
        request.copies = [copy for copy in request.copies if copy[1] in request.table]
        request.computed = kept * BLOCK_TOKENS
        request.replaces = request.known_on is not None

    def _copy_last_block(self, request: Request) -> None:
        """Go on in a copy of the last block, as a request does that shares its prefix."""
        index = request.computed // BLOCK_TOKENS
        source, target = request.table[index], self._take(request.rank)
        request.copies.append((source, target))
        request.table[index] = target
        request.replaces = True

    def _move(self, request: Request, rank: int) -> None:
        self._shrink(request, 0)
        if request.known_on is not None:
            self._leavers.append((request.known_on, request.name))
        request.rank, request.known_on, request.replaces = rank, None, False

    def _take(self, rank: int) -> int:
        free = self._free[rank]
        return free.pop(int(self._rng.integers(len(free))))

    def _step(self, chosen: list[tuple[Request, int]]) -> None:
        steps = []
        for rank in {request.rank for request, _ in chosen}:
            here = [(request, count) for request, count in chosen if request.rank == rank]
            steps.append(self._rank_step(rank, here))
        for output in self._machine.step(steps).values():
            for name, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
                next(r for r in self._requests if r.name == name).text.append(token)

    def _rank_step(self, rank: int, here: list[tuple[Request, int]]) -> RankStep:
        order = self._rng.permutation(len(here))
        new, scheduled, copies = [], [], []
        for request, count in (here[index] for index in order):
            while len(request.table) * BLOCK_TOKENS < request.computed + count:
                request.table.append(self._take(rank))
            blocks = request.table if request.replaces else request.table[request.told_blocks :]
            if request.known_on is None:
                new.append(self._introduce(request))
                blocks = []
            scheduled.append(
                Scheduled(
                    request_id=request.name,
                    first_position=request.computed,
                    new_tokens=count,
                    new_block_ids=list(blocks),
                    replaces_blocks=request.replaces,
                )
            )
            copies += request.copies
            request.computed += count
            request.known_on, request.replaces, request.copies = rank, False, []
            request.told_blocks = len(request.table)
        finished = [name for where, name in self._leavers if where == rank]
        self._leavers = [leaver for leaver in self._leavers if leaver[0] != rank]
        return RankStep(
            rank=rank, new=new, scheduled=scheduled, finished=finished, block_copies=copies
        )

    def _introduce(self, request: Request) -> NewRequest:
        return NewRequest(
            request_id=request.name,
            token_ids=request.tokens,
            prompt_tokens=len(request.expected.prompt),
            sampling=request.expected.sampling,
            block_ids=list(request.table),
        )


@pytest.fixture(scope="module", params=[pytest.param(NAMES[0], marks=pytest.mark.slow), *NAMES[1:]])
def stock(
    request: pytest.FixtureRequest, small_checkpoints: Mapping[str, Path]
) -> tuple[Path, list[Alone]]:
    """A checkpoint, and some requests with what each gives alone; two share a prefix."""
    directory = small_checkpoints[request.param]
    rng = np.random.default_rng(9)
    prompts = [rng.integers(0, 200, length).tolist() for length in (1, 40, 130, 260)]
    prompts.append(prompts[3][:200] + prompts[1])
    return directory, [
        alone(directory, prompt, SEEDED if index % 2 else GREEDY)
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.long
@given(
    chips=st.sampled_from([1, 2, 4]),
    chosen=st.lists(st.integers(0, 4), min_size=2, max_size=5),
    rounds=st.lists(st.lists(moves, min_size=5, max_size=5), max_size=14),
    seed=st.integers(0, 2**16),
)
def test_any_schedule_gives_each_request_the_bits_that_it_has_alone(
    stock: tuple[Path, list[Alone]],
    chips: int,
    chosen: list[int],
    rounds: list[list[Move]],
    seed: int,
) -> None:
    directory, known = stock
    machine = InProcessChips(directory, chips=chips, block_tokens=BLOCK_TOKENS)
    requests = [
        Request(name=f"request-{index}", expected=known[which], rank=index % chips)
        for index, which in enumerate(chosen)
    ]

    Scheduler(machine, requests, seed).play(rounds)

    for request in requests:
        assert request.text == request.expected.text
        assert (machine.rows(request.name) == request.expected.logits).all()
