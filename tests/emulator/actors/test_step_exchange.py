"""Chips that share memory are told, and return, what they would through the hub.

Each chip is a thread here: waiting is compiled code that lets other threads run.
"""

import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.actors import step_exchange
from emulator.actors.chip_exchange import ChipExchange
from emulator.actors.exchange_segment import ExchangeSegment
from emulator.actors.step_exchange import SharedExchange, StepAttempt
from emulator.arrays import Float32s, Int64s
from emulator.chip.chip import RunLayers
from emulator.chip.commands import (
    NO_BITMASK,
    BeginStep,
    Combine,
    Command,
    JoinExchange,
    JoinStep,
    Reduce,
    RepeatStep,
    RunExperts,
)
from emulator.chip.effects import (
    Dispatch,
    Effect,
    ExpertRows,
    PartialSums,
    StepBroken,
    StepDone,
)
from emulator.compute.checkpoint import read_architecture
from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChannelError
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.step import RankOutput, RankStep, Scheduled
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.lockstep import Lockstep, StepResult

pytestmark = pytest.mark.process

ARCH = read_architecture(SMALL_MOE_DIR)
LAYERS, EXPERTS, K = len(ARCH.expert_layers), ARCH.experts, ARCH.experts_per_token
DENSE = replace(ARCH, dense_layers=tuple(range(LAYERS)), experts=0, experts_per_token=0)
WAIT_S = 60.0


class ScriptedChip:
    """Takes a chip's messages, and computes so little that every sum of small numbers is exact.

    `chosen` [layers, ranks, tokens of a rank at most, k]: what each token chooses; without layers
    all are dense.
    """

    def __init__(
        self, number: int, tp: int, attending: int, placement: ExpertPlacement, chosen: Int64s
    ) -> None:
        self.asked: list[RunExperts] = []
        self.x: Float32s = np.zeros((0, ARCH.hidden), np.float32)
        self._number, self._index, self._parts = number, number % tp, attending
        self._rank = number // tp
        self._placement, self._chosen = placement, chosen
        self._layer = 0
        self.table = None
        self.run_layers: RunLayers | None = None

    def handle(self, command: Command) -> Effect:
        match command:
            case BeginStep():
                tokens = sum(each.new_tokens for each in command.step.scheduled)
                self._begun = 1.0 + self._rank + np.arange(tokens * ARCH.hidden, dtype=np.float32)
                return self._restart()
            case RepeatStep():
                return self._restart()
            case Reduce():
                self.x = self.x + command.rows.sum(axis=0) % 512
                if len(self._chosen):
                    return self._dispatch()
                self._layer += 1
                return self._enter()
            case RunExperts():
                self.asked.append(command)
                return ExpertRows(layer=command.layer, rows=self._outputs(command))
            case Combine():
                self.x = self.x + command.expert_rows.sum(axis=1) % 512
                self._layer += 1
                return self._enter()
        raise AssertionError(command)

    def _restart(self) -> Effect:
        self.x = (self._begun % 64).reshape(-1, ARCH.hidden)
        self._layer = 0
        return self._enter() if len(self.x) else self._done()

    def _enter(self) -> Effect:
        if self._layer == LAYERS:
            return self._done()
        if self._parts == 1:
            return self._dispatch() if len(self._chosen) else self._done()
        groups = ARCH.groups // self._parts
        factor = self._index * groups + np.arange(groups, dtype=np.float32)
        return PartialSums(layer=self._layer, rows=self.x * factor[:, None, None])

    def _dispatch(self) -> Dispatch:
        tokens = len(self.x)
        own = slice(tokens * self._index // self._parts, tokens * (self._index + 1) // self._parts)
        chosen = self._chosen[self._layer, self._rank, :tokens][own]
        return Dispatch(layer=self._layer, hidden=self.x[own], chosen=chosen)

    def _outputs(self, command: RunExperts) -> Float32s:
        held = self._placement.expert_of_slot[command.layer, self._number]
        expert = np.repeat(held, command.counts).astype(np.float32)
        return command.rows[command.row_of_pair] % 128 + expert[:, None]

    def _done(self) -> StepDone:
        sums = self.x.sum(axis=1).astype(np.int32)
        return StepDone(
            output=RankOutput(
                rank=self._rank,
                request_ids=[],
                token_ids=sums,
                logprobs=None,
                prompt_logprobs={},
            )
        )


class Machine:
    """Scripted chips of a partition, through the hub or through shared memory."""

    def __init__(self, placement: ExpertPlacement, tp: int, chosen: Int64s) -> None:
        self.tp, self.placement = tp, placement
        self.attending = ARCH.attending_chips(tp)
        self.chips = [
            ScriptedChip(chip, tp, self.attending, placement, chosen)
            for chip in range(placement.chips)
        ]
        self.joined: dict[int, ExchangeSegment] = {}
        arch = ARCH if len(chosen) else DENSE
        self.exchange = SharedExchange(
            placement, arch, tp=tp, slots_max=placement.slots, send_all=self._join
        )

    def _join(self, messages: Mapping[int, Command]) -> None:
        for chip, message in messages.items():
            assert isinstance(message, JoinExchange)
            self.joined[chip] = ExchangeSegment.join(message)

    def begin(self, tokens: list[int]) -> dict[int, BeginStep]:
        commands = {}
        for rank, count in enumerate(tokens):
            scheduled = [Scheduled(request_id="r", first_position=0, new_tokens=count)]
            step = RankStep(rank=rank, new=[], scheduled=scheduled if count else [], finished=[])
            for chip in range(rank * self.tp, rank * self.tp + self.attending):
                commands[chip] = BeginStep(step=step, grammar_bitmask=NO_BITMASK)
        return commands

    def by_hub(self, tokens: list[int]) -> StepResult:
        lockstep = Lockstep(self.begin(tokens), ExpertMap(self.placement), self.tp)
        commands = lockstep.start()
        while commands:
            replies = {chip: self.chips[chip].handle(each) for chip, each in commands.items()}
            commands = lockstep.advance(replies)
        return lockstep.result(lockstep.outputs)

    def by_memory(self, tokens: list[int]) -> StepResult:
        attempt = self.exchange.attempt(self.begin(tokens), range(self.placement.chips))
        return finish(attempt, self.run(attempt.start()))

    def run(self, commands: Mapping[int, Command]) -> "Running":
        return Running(
            {
                chip: ChipExchange(
                    self.joined[chip],
                    self.chips[chip],
                    number=chip,
                    tp=self.attending,
                    tp_index=chip % self.tp,
                    hub=-1,
                )
                for chip in commands
            },
            commands,
        )


class Running:
    """Chips at work, a thread each."""

    def __init__(
        self, exchanges: Mapping[int, ChipExchange], commands: Mapping[int, Command]
    ) -> None:
        self._replies: dict[int, Effect] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(chip, exchanges[chip], command), daemon=True)
            for chip, command in commands.items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, chip: int, exchange: ChipExchange, command: Command) -> None:
        self._replies[chip] = exchange.run(command)

    def replies(self) -> dict[int, Effect]:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert len(self._replies) == len(self._threads), "a chip failed"
        return self._replies


def finish(attempt: StepAttempt, running: Running) -> StepResult:
    assert attempt.advance(running.replies()) == {}
    return attempt.result(attempt.outputs)


def even(chips: int, ep: int) -> ExpertPlacement:
    return ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=chips, ep=ep)


def random_placement(chips: int, ep: int, spare: int, rng: np.random.Generator) -> ExpertPlacement:
    """Every expert in each group once in a random slot, and copies of some."""
    slots = -(-EXPERTS // ep) + spare
    held = np.full((LAYERS, chips, slots), EMPTY, dtype=np.int64)
    for layer in range(LAYERS):
        for group in range(chips // ep):
            more = rng.integers(EMPTY, EXPERTS, ep * slots - EXPERTS)
            experts = rng.permutation(np.concatenate([np.arange(EXPERTS), more]))
            held[layer, group * ep : (group + 1) * ep] = experts.reshape(ep, slots)
    return ExpertPlacement(experts=EXPERTS, ep=ep, expert_of_slot=held)


def random_choices(ranks: int, tokens: int, rng: np.random.Generator) -> Int64s:
    scores = rng.random((LAYERS, ranks, tokens, EXPERTS))
    return np.sort(np.argsort(scores, axis=-1)[..., :K], axis=-1)


def assert_equal(found: StepResult, expected: StepResult) -> None:
    assert found.outputs.keys() == expected.outputs.keys()
    for rank, output in expected.outputs.items():
        assert (found.outputs[rank].token_ids == output.token_ids).all()
    assert (found.loads is None) == (expected.loads is None)
    if found.loads is not None and expected.loads is not None:
        for name in ("pairs", "distinct", "sent"):
            assert (getattr(found.loads, name) == getattr(expected.loads, name)).all(), name
        assert np.array_equal(found.expert_pairs, expected.expert_pairs)


@st.composite
def machines(draw: st.DrawFn) -> tuple[int, int, int, int, int, list[list[int]]]:
    tp = draw(st.sampled_from([1, 2, 4]))
    ranks = draw(st.integers(1, 4 // tp + 1))
    chips = tp * ranks
    ep = draw(st.sampled_from([each for each in range(1, chips + 1) if chips % each == 0]))
    counts = st.lists(st.integers(0, 5), min_size=ranks, max_size=ranks)
    steps = draw(st.lists(counts, min_size=1, max_size=3))
    return tp, chips, ep, draw(st.integers(0, 3)), draw(st.integers(0, 2**32 - 1)), steps


@settings(deadline=None)
@given(machines())
def test_every_chip_is_asked_and_answered_as_by_the_hub(
    machine: tuple[int, int, int, int, int, list[list[int]]],
) -> None:
    tp, chips, ep, spare, seed, steps = machine
    rng = np.random.default_rng(seed)
    placement = random_placement(chips, ep, spare, rng)
    chosen = random_choices(chips // tp, 5, rng)
    hub, shared = Machine(placement, tp, chosen), Machine(placement, tp, chosen)

    for tokens in steps:
        assert_equal(shared.by_memory(tokens), hub.by_hub(tokens))
        for mine, other in zip(shared.chips, hub.chips, strict=True):
            assert (mine.x == other.x).all()
            assert len(mine.asked) == len(other.asked)
            for found, expected in zip(mine.asked, other.asked, strict=True):
                assert found.layer == expected.layer
                for name in ("rows", "row_of_pair", "counts"):
                    assert (getattr(found, name) == getattr(expected, name)).all(), name


@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_without_experts_exchange_sums_alone(tp: int) -> None:
    held = np.zeros((0, 4, 0), dtype=np.int64)
    placement = ExpertPlacement(experts=0, ep=4, expert_of_slot=held)
    chosen = np.zeros((0, 4, 5, 0), dtype=np.int64)
    hub, shared = Machine(placement, tp, chosen), Machine(placement, tp, chosen)

    for tokens in ([3, 1, 0, 5], [2, 2, 2, 2]):
        found = shared.by_memory(tokens[: 4 // tp])
        assert found.loads is None
        assert_equal(found, hub.by_hub(tokens[: 4 // tp]))


def test_other_slots_are_sent_to_from_the_next_step_on() -> None:
    rng = np.random.default_rng(0)
    chosen = random_choices(2, 3, rng)
    first, second = even(2, 2), random_placement(2, 2, 0, rng)
    shared, hub = Machine(first, 1, chosen), Machine(second, 1, chosen)

    shared.by_memory([3, 3])
    shared.exchange.set_placement(second)
    for chip in shared.chips:
        chip._placement = second

    assert_equal(shared.by_memory([3, 1]), hub.by_hub([3, 1]))


def test_a_step_that_is_too_large_has_a_larger_memory_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_exchange, "_TOKENS_AT_FIRST", 4)
    chosen = random_choices(2, 40, np.random.default_rng(0))
    shared, hub = Machine(even(2, 2), 1, chosen), Machine(even(2, 2), 1, chosen)

    assert_equal(shared.by_memory([1, 3]), hub.by_hub([1, 3]))
    before = shared.joined[0]
    assert_equal(shared.by_memory([40, 3]), hub.by_hub([40, 3]))
    assert before.sizes.tokens == 4
    assert shared.joined[0].sizes.tokens == 64


@pytest.mark.parametrize("tp", [1, 2])
def test_memory_of_a_large_step_goes_back(monkeypatch: pytest.MonkeyPatch, tp: int) -> None:
    monkeypatch.setattr(step_exchange, "_ROWS_KEPT_BYTES", 20_000)
    chosen = random_choices(1, 300, np.random.default_rng(0))
    shared = Machine(even(tp, tp), tp, chosen)
    shared.by_memory([1])
    small = used_bytes(shared.joined[0])

    shared.by_memory([300])

    assert used_bytes(shared.joined[0]) <= small
    assert_equal(shared.by_memory([2]), Machine(even(tp, tp), tp, chosen).by_hub([2]))


def test_a_chip_that_is_late_does_not_join_a_memory_made_since() -> None:
    sizes = JoinExchange(
        chips=1, layers=1, experts=1, experts_per_token=1, slots=1, hidden=1, groups=1, tokens=1
    )
    before = ExchangeSegment.make(sizes)
    before.close()
    since = ExchangeSegment.make(sizes)
    try:
        assert since.sizes.path == before.sizes.path, "the number of the file is free again"
        with pytest.raises(ChannelError, match="exchange memory"):
            ExchangeSegment.join(before.sizes)
        ExchangeSegment.join(since.sizes)
    finally:
        since.close()


def used_bytes(segment: ExchangeSegment) -> int:
    return Path(segment.sizes.path).stat().st_blocks * 512


def test_a_step_that_is_broken_off_is_repeated_with_the_same_outcome() -> None:
    chosen = random_choices(3, 4, np.random.default_rng(0))
    shared, hub = Machine(even(3, 3), 1, chosen), Machine(even(3, 3), 1, chosen)
    expected = hub.by_hub([4, 0, 2])
    attempt = shared.exchange.attempt(shared.begin([4, 0, 2]), range(3))
    commands = attempt.start()
    del commands[2]  # it is lost
    running = shared.run(commands)
    shared.exchange.break_off()
    replies = running.replies()

    assert isinstance(replies[0], StepBroken)
    assert isinstance(replies[1], StepDone)  # it has no token
    attempt.note_done(replies)
    assert attempt.outputs.keys() == {1}
    assert not attempt.ran_all_layers
    shared.exchange.forget_chips()

    shared.chips[2].handle(shared.begin([4, 0, 2])[2])
    again = shared.exchange.attempt({0: RepeatStep(), 2: RepeatStep()}, range(3))
    result = finish(again, shared.run(again.start()))
    assert again.ran_all_layers
    assert_equal(
        result,
        StepResult(
            outputs={rank: expected.outputs[rank] for rank in (0, 2)},
            loads=expected.loads,
            expert_pairs=expected.expert_pairs,
        ),
    )


def test_a_chip_that_waits_is_known_and_others_progress_is() -> None:
    chosen = random_choices(2, 1, np.random.default_rng(0))
    shared = Machine(even(2, 2), 1, chosen)
    attempt = shared.exchange.attempt(shared.begin([1, 1]), range(2))
    assert shared.exchange.progress() == 0
    commands = attempt.start()
    first = shared.run({0: commands[0]})
    while not shared.exchange.waits(0):
        pass
    assert not shared.exchange.waits(1)
    assert shared.exchange.progress() == 1

    second = shared.run({1: commands[1]})

    assert isinstance(first.replies()[0], StepDone)
    assert isinstance(second.replies()[1], StepDone)
    assert shared.exchange.progress() == 2 * 2 * LAYERS
    assert not shared.exchange.waits(0)


def test_all_live_chips_take_part_where_there_are_tokens_and_none_is_left_out() -> None:
    machine = Machine(even(4, 4), 1, random_choices(4, 1, np.random.default_rng(0)))

    gone = machine.exchange.attempt(machine.begin([0, 0, 0, 1]), [0, 1]).start()
    idle = machine.exchange.attempt(machine.begin([0, 0]), [0, 1, 2, 3]).start()

    assert {chip: type(each) for chip, each in gone.items()} == dict.fromkeys(range(4), BeginStep)
    assert sorted(idle) == [0, 1]
    one = {3: machine.begin([0, 0, 0, 1])[3]}
    some = machine.exchange.attempt(one, [0, 1, 3]).start()
    assert some == {0: JoinStep(), 1: JoinStep(), **one}


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    machine = Machine(even(1, 1), 1, random_choices(1, 1, np.random.default_rng(0)))
    machine.by_memory([1])
    sizes = machine.joined[0].sizes
    other = tmp_path / "other"
    other.write_bytes(bytes(4096))

    with pytest.raises(ChannelError, match=r"exchange memory .* \(4096, "):
        ExchangeSegment.join(replace(sizes, path=str(other)))


def test_nobody_else_may_open_the_memory_or_change_its_size() -> None:
    machine = Machine(even(1, 1), 1, random_choices(1, 1, np.random.default_rng(0)))
    machine.by_memory([1])
    path = machine.joined[0].sizes.path

    assert Path(path).stat().st_nlink == 0
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
