"""Live chips that are killed or hang: the fleet says which, and the text goes on unchanged.

One fleet with a chip a rank and one with two serve the whole file; every test hands back a fleet of
four working chips.
"""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from emulator import fleet as fleet_module
from emulator.errors import ChipLost
from emulator.faults.reloads import plan_reloads
from emulator.fleet import Fleet
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from emulator.specs.step import RankOutput, RankStep
from emulator.ultraserver.lockstep import StepResult
from tests.emulator.fleet_steps import (
    EXPERTS,
    GREEDY,
    LAYERS,
    RANDOM,
    assert_same,
    decode_steps,
    descendants,
    even_placement,
    in_process,
    is_running,
    last_steps,
    make_fleet,
    prefill_steps,
    process_of,
    start,
)
from tests.emulator.held_step import (
    held_before_experts,
    when_all_answered,
    when_all_dispatched,
)

pytestmark = pytest.mark.fleet

CHIPS = 4
SLOTS_MAX = 48  # three chips have room for all experts
DECODES = 3
GONE_WITHIN_S = 20.0


@dataclass(frozen=True)
class Calm:
    """Steps, and what every rank samples in them while nothing happens."""

    steps: list[list[RankStep]]
    outputs: list[Mapping[int, RankOutput]]

    def of(self, number: int, ranks: set[int]) -> list[RankStep]:
        return [step for step in self.steps[number] if step.rank in ranks]

    def check(self, number: int, result: StepResult, ranks: set[int]) -> None:
        assert ranks <= result.outputs.keys()
        for rank in ranks:
            assert_same(result.outputs[rank], self.outputs[number][rank])


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["tp1", "tp2"]
)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    before = descendants()
    scratch = Path(tempfile.mkdtemp(prefix="fleet-"))
    fleet = make_fleet(CHIPS, tp=request.param, slots_max=SLOTS_MAX)
    try:
        start(fleet, scratch)
        yield fleet
    finally:
        fleet.stop()
    assert descendants() - before == set()
    assert list(scratch.iterdir()) == []
    shutil.rmtree(scratch)


@pytest.fixture(scope="module")
def calm(fleet: Fleet) -> Calm:
    machine = in_process(CHIPS, tp=fleet.tp)
    kinds = [(rank, (GREEDY, RANDOM)[rank % 2]) for rank in range(CHIPS // fleet.tp)]
    prefill = prefill_steps(kinds, tokens=300)
    steps = [prefill, *(decode_steps(prefill, made) for made in range(1, DECODES + 1))]
    return Calm(steps=steps, outputs=[machine.step(given) for given in steps])


@contextmanager
def before_it_is_sent(fleet: Fleet, happen: Callable[[], None]) -> Iterator[None]:
    """Let `happen` before the next step's first messages are sent."""
    channel: Any = fleet._processes.channel
    send_all = channel.send_all

    def send(messages: Mapping[int, Any]) -> None:
        del channel.send_all
        happen()
        send_all(messages)

    channel.send_all = send
    yield


def end_process(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs([process], timeout=GONE_WITHIN_S)


def computed_ns(process: psutil.Process) -> int:
    """What all threads of `process` have run on a processor so far."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(path.read_text(encoding="ascii").split()[0]) for path in tasks)


@contextmanager
def while_it_computes(fleet: Fleet, process: psutil.Process) -> Iterator[None]:
    """Kill `process` from another thread, 2 ms of its time into the first layer's attention.

    Nobody goes on to the experts, so that the step cannot end before.
    """
    before_ns = computed_ns(process)

    def watch() -> None:
        while computed_ns(process) < before_ns + 2_000_000:
            time.sleep(0.0005)
        end_process(process)

    thread = threading.Thread(target=watch)
    thread.start()
    with held_before_experts(fleet):
        yield
    thread.join()


@contextmanager
def losing(fleet: Fleet, chip: int, way: str) -> Iterator[None]:
    process = process_of(fleet, chip)
    match way:
        case "before it hears of the step":
            with before_it_is_sent(fleet, lambda: end_process(process)):
                yield
        case "among the layers":
            with when_all_dispatched(fleet, 2, lambda: end_process(process)):
                yield
        case "as the others finish":
            with when_all_answered(fleet, LAYERS - 1, lambda: end_process(process)):
                yield
        case "as it is stopped among the layers":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fleet._watch, "silence_timeout_s", 1.0)
                with when_all_dispatched(fleet, 1, process.suspend):
                    yield
            assert fleet.silent == {chip}
        case "while it computes":
            with while_it_computes(fleet, process):
                yield
        case _:
            fleet.hang(chip)
            yield
            assert is_running(process)


def read_lost_experts(fleet: Fleet, chip: int) -> None:
    """The survivors read the lost chip's experts from the checkpoint."""
    reloads = plan_reloads(
        even_placement(CHIPS),
        gone=np.array([chip]),
        filled=np.zeros(0, dtype=np.int64),
        seated=np.array(sorted(fleet.live_chips)),
        capacity=np.full(CHIPS, SLOTS_MAX),
        groups=np.array([0]),
    )
    assert len(reloads.transfers) == LAYERS * EXPERTS // CHIPS  # of each layer the chip's quarter
    fleet.place(reloads.placement, reloads.transfers)


@pytest.mark.parametrize(
    ("chip", "way", "spare_comes"),
    [
        (3, "before it hears of the step", "at once"),
        (2, "among the layers", "later"),
        (3, "as the others finish", "at once"),
        (1, "as it is stopped among the layers", "at once"),
        (2, "while it computes", "later"),
        (3, "as it hangs", "later"),
    ],
)
def test_a_chip_lost_in_a_step_is_named_and_the_text_goes_on_as_if_nothing_had_been(
    fleet: Fleet, calm: Calm, chip: int, way: str, spare_comes: str
) -> None:
    lost_rank = chip // fleet.tp
    ranks = set(range(CHIPS // fleet.tp))
    others = ranks - {lost_rank}
    process = process_of(fleet, chip)

    with losing(fleet, chip, way), pytest.raises(ChipLost) as loss:
        fleet.step(calm.steps[0], {})
    assert loss.value.chips == (chip,)
    assert nothing_waits(fleet, chip)
    fleet.remove([chip], [lost_rank])
    assert fleet.live_chips == frozenset(range(CHIPS)) - {chip}
    assert psutil.wait_procs([process], timeout=GONE_WITHIN_S)[1] == []
    if spare_comes == "at once":
        fleet.add(chip, even_placement(CHIPS))
    else:
        read_lost_experts(fleet, chip)

    resumed = fleet.resume([lost_rank])
    calm.check(0, resumed, others)
    assert resumed.loads is not None  # also where nobody had to repeat
    calm.check(1, fleet.step(calm.of(1, others), {}), others)
    if spare_comes == "later":
        fleet.add(chip, even_placement(CHIPS))
    # The lost rank's requests are computed again, while the others are a token ahead.
    calm.check(0, fleet.step(calm.of(0, {lost_rank}), {}), {lost_rank})
    both = fleet.step(calm.of(2, others) + calm.of(1, {lost_rank}), {})
    calm.check(2, both, others)
    calm.check(1, both, {lost_rank})
    calm.check(2, fleet.step(calm.of(2, {lost_rank}), {}), {lost_rank})
    calm.check(3, fleet.step(calm.steps[3], {}), ranks)

    fleet.step(last_steps(calm.steps[0]), {})
    assert fleet.live_chips == frozenset(range(CHIPS))


def nothing_waits(fleet: Fleet, lost: int) -> bool:
    """Whether all chips but the lost one have been heard: none has an answer left over."""
    others = [chip for chip in range(CHIPS) if chip != lost]
    drained = fleet._processes.channel.drain(others, 0.2)
    return drained.replies == {} and drained.lost == () and drained.silent == tuple(others)


def test_two_chips_lost_at_once_are_both_named_in_the_end(fleet: Fleet, calm: Calm) -> None:
    processes = {chip: process_of(fleet, chip) for chip in (1, 2)}
    ranks = set(range(CHIPS // fleet.tp))
    lost: set[int] = set()

    def end_both() -> None:
        for process in processes.values():
            end_process(process)

    def attempt() -> StepResult:
        if not lost:
            return fleet.step(calm.steps[0], {})
        return fleet.resume({chip // fleet.tp for chip in lost})

    with when_all_dispatched(fleet, 1, end_both):
        while True:
            try:
                result = attempt()
                break
            except ChipLost as loss:
                lost.update(loss.chips)
                fleet.remove(loss.chips, {chip // fleet.tp for chip in loss.chips})
                for chip in loss.chips:
                    fleet.add(chip, even_placement(CHIPS))

    lost_ranks = {chip // fleet.tp for chip in lost}
    assert lost == {1, 2}
    calm.check(0, result, ranks - lost_ranks)
    calm.check(0, fleet.step(calm.of(0, lost_ranks), {}), lost_ranks)
    calm.check(1, fleet.step(calm.steps[1], {}), ranks)
    fleet.step(last_steps(calm.steps[0]), {})


@pytest.mark.slow
def test_a_chip_that_falls_silent_as_another_is_lost_is_given_up_as_soon_and_as_silent(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "SILENCE_TIMEOUT_S", 30.0)
    monkeypatch.setattr(fleet._watch, "silence_timeout_s", 1.0)
    ended, stopped = process_of(fleet, 0), process_of(fleet, 3)
    os.kill(stopped.pid, signal.SIGSTOP)
    end_process(ended)
    began_s = time.monotonic()
    with pytest.raises(ChipLost) as loss:
        fleet.conditions()

    assert time.monotonic() - began_s < 15.0
    assert loss.value.chips == (0, 3)
    assert fleet.silent == {3}
    fleet.remove([0, 3], {0, 3 // fleet.tp})
    assert psutil.wait_procs([stopped], timeout=GONE_WITHIN_S)[1] == []
    monkeypatch.undo()
    for chip in (0, 3):
        fleet.add(chip, even_placement(CHIPS))


def test_a_chip_lost_while_experts_move_is_named_and_what_lies_where_is_known(
    fleet: Fleet, calm: Calm
) -> None:
    ranks = set(range(CHIPS // fleet.tp))
    process = process_of(fleet, 0)
    fleet.place(even_placement(CHIPS), [])
    # A copy of the first expert of chip 1 in layer 0, and of the first of chip 0 in layer 1.
    copies = [
        ExpertTransfer(layer=0, expert=36, source_chip=1, source_slot=0, chip=3, slot=40),
        ExpertTransfer(layer=1, expert=0, source_chip=0, source_slot=0, chip=3, slot=40),
    ]
    slots = np.pad(even_placement(CHIPS).expert_of_slot, ((0, 0), (0, 0), (0, 5)), "constant")
    slots[:, :, 36:] = EMPTY
    slots[[0, 1], 3, 40] = 36, 0

    fleet.kill(0)
    assert psutil.wait_procs([process], timeout=GONE_WITHIN_S)[1] == []
    with pytest.raises(ChipLost) as loss:
        fleet.place(ExpertPlacement(experts=EXPERTS, ep=CHIPS, expert_of_slot=slots), copies)
    assert loss.value.chips == (0,)
    assert fleet.placement.expert_of_slot[:2, 3, 40].tolist() == [36, EMPTY]
    fleet.remove([0], [0])
    fleet.add(0, even_placement(CHIPS))

    calm.check(0, fleet.step(calm.steps[0], {}), ranks)
    calm.check(1, fleet.step(calm.steps[1], {}), ranks)
    fleet.step(last_steps(calm.steps[0]), {})


def test_a_spare_that_does_not_start_is_a_lost_chip_and_another_may_come(
    fleet: Fleet, calm: Calm, tmp_path: Path
) -> None:
    process = process_of(fleet, 1)
    fleet.remove([1], [1 // fleet.tp])
    assert psutil.wait_procs([process], timeout=GONE_WITHIN_S)[1] == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fleet._weights_of, 1, tmp_path / "gone")
        with pytest.raises(ChipLost, match="did not start") as loss:
            fleet.add(1, even_placement(CHIPS))
    assert loss.value.chips == (1,)
    assert fleet.live_chips == {0, 2, 3}
    fleet.add(1, even_placement(CHIPS))

    ranks = set(range(CHIPS // fleet.tp))
    calm.check(0, fleet.step(calm.steps[0], {}), ranks)
    fleet.step(last_steps(calm.steps[0]), {})
