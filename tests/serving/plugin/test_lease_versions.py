"""Chips that leave while weights are rolled out, and weights that come while chips are away."""

from pathlib import Path

import pytest

from emulator.sim.clock import DilatedClock
from serving.engine.scheduler_state import RankQueues
from serving.wire.control_call import PublishRequest, VersionReport, WatchReply, WatchRequest
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.serving.plugin.leased_requests import Served, drain, lease_of, resume
from tests.serving.plugin.live_parts import KV_BLOCKS, NEW_TOKENS, PROMPTS, texts_of_one_chip
from tests.serving.plugin.other_weights import other_weights
from tests.serving.plugin.running_engine import Running, heard


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "other", seed=2)


@pytest.fixture(scope="module")
def old() -> dict[str, list[int]]:
    return texts_of_one_chip()


@pytest.fixture(scope="module")
def new(other: Path) -> dict[str, list[int]]:
    chips = InProcessChips(other, chips=1, kv_blocks=KV_BLOCKS)
    return serve(chips, PROMPTS, new_tokens=NEW_TOKENS)


def publish(running: Running, directory: Path) -> None:
    assert isinstance(running.ask(PublishRequest(weights_dir=str(directory))), VersionReport)


def versions(running: Running) -> list[int]:
    return [rank.version for rank in running.state().ranks]


def idle_queues(running: Running) -> tuple[RankQueues, ...]:
    idle = RankQueues(running=0, waiting=0, kv_blocks_used=0)
    return (idle,) * running.parts.deployment.partition.ranks


def roll_out(running: Running) -> None:
    """What an idle scheduler and the engine say to each other until nothing waits."""
    queues, closed = idle_queues(running), ()
    for _ in range(8):
        running.engine.hear(heard(rank_states=queues, closed_ranks=closed))
        closed = running.engine.idle_report().closed_ranks


def turn_until(served: Served, number: int, phase: str) -> None:
    for _ in range(6 * NEW_TOKENS):
        if lease_of(served.running, number).phase == phase:
            return
        served.turn()
    raise AssertionError(f"it is never {phase}")


@pytest.mark.long
def test_who_leaves_in_a_roll_out_goes_on_where_its_weights_are(
    other: Path, old: dict[str, list[int]]
) -> None:
    running = Running(chips=4, ep=2)
    served = Served(running)
    texts = served.serve_on({1: lambda: publish(running, other), 3: lambda: drain(running, 3)})

    assert texts == old
    assert served.moved == 1
    assert served.rank_of["d"] == 2  # of the block that waits for its turn
    for _ in range(6):
        served.turn()
    assert versions(running) == [2, 2, 2, 2]
    assert lease_of(running, 1).phase == "training"


@pytest.mark.long
def test_a_drain_waits_for_requests_whose_weights_nobody_else_serves(
    other: Path, old: dict[str, list[int]]
) -> None:
    running = Running(chips=4, ep=2)
    served = Served(running)
    served.rank_of = dict(zip(PROMPTS, (2, 3, 2, 3), strict=True))
    served.turn()
    publish(running, other)
    while versions(running)[0] == 1:
        served.turn()
    drain(running, 2, 3, grace_s=0.0)
    served.turn()
    lease = lease_of(running, 1)
    assert lease.phase == "draining"
    assert lease.reason == (
        "4 requests are left on ranks 2, 3 that end on the weights they began with"
    )

    assert served.serve_on() == old
    turn_until(served, 1, "training")
    assert served.moved == 0
    assert lease_of(running, 1).drained_requests == 4
    assert versions(running) == [2, 2, 2, 2]  # the block that is away will read them


@pytest.mark.long
@pytest.mark.parametrize("chips", [(2, 3), (3,)], ids=["a whole block", "a part of one"])
def test_what_is_published_while_chips_are_lent_out_is_what_they_read_when_they_are_back(
    chips: tuple[int, ...], other: Path, new: dict[str, list[int]]
) -> None:
    running = Running(chips=4, ep=2)
    running.step(0, 1, 2, 3)
    drain(running, *chips)
    publish(running, other)
    roll_out(running)
    assert versions(running) == [2, 2, 2, 2]
    assert lease_of(running, 1).phase == "training"

    resume(running, 1)
    assert lease_of(running, 1).phase == "serving"
    assert running.parts.machine.ranks_up.all()
    assert Served(running).serve_on() == new


@pytest.mark.long
def test_chips_that_are_back_before_their_block_s_turn_serve_the_old_weights_until_then(
    other: Path, old: dict[str, list[int]]
) -> None:
    running = Running(chips=4, ep=2)
    served = Served(running)
    served.turn()
    drain(running, 3)
    served.turn()
    publish(running, other)
    served.turn()
    resume(running, 1)
    assert served.serve_on() == old
    turn_until(served, 1, "serving")
    for _ in range(6):
        served.turn()
    assert versions(running) == [2, 2, 2, 2]


@pytest.mark.long
def test_weights_that_are_published_while_chips_read_are_read_instead(other: Path) -> None:
    running = Running(chips=8, ep=4, model="gpt-oss-20b", computes=False)
    served = Served(running)
    served.turn()
    drain(running, 4, 5, 6, 7)
    turn_until(served, 1, "training")
    resume(running, 1)
    served.turn()
    first = lease_of(running, 1)
    assert first.phase == "restoring"
    assert first.until_emulated_s is not None
    publish(running, other)
    served.turn()
    again = lease_of(running, 1)
    assert again.reason == "reads weights that were published meanwhile"
    assert again.until_emulated_s is not None
    assert again.until_emulated_s > first.until_emulated_s
    assert again.bytes_storage == 2 * first.bytes_storage

    while not running.parts.machine.ranks_up.all():
        running.step(0)
    after = running.state()
    assert after.emulated_s >= again.until_emulated_s
    assert [rank.version for rank in after.ranks[4:]] == [2] * 4
    assert lease_of(running, 1).restore_s > again.until_emulated_s - again.since_emulated_s


@pytest.mark.long
def test_a_paused_engine_goes_on_with_a_drain_and_loses_no_request(
    old: dict[str, list[int]],
) -> None:
    running = Running()
    served = Served(running)
    served.turn()
    drain(running, 3, grace_s=0.0)
    running.engine._wake.paused = True  # as its scheduler says; no step comes
    reply = running.ask(WatchRequest())
    assert isinstance(reply, WatchReply)
    assert [lease.phase for lease in reply.leases] == ["training"]
    assert served.serve_on() == old
    assert served.moved == 1


def test_an_idle_engine_restores_by_itself_and_rests_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(DilatedClock(0.02), chips=8, model="gpt-oss-20b", computes=False)
    rested: list[None] = []
    rest = running.engine._time.rest

    def counted() -> None:
        rested.append(None)
        rest()

    monkeypatch.setattr(running.engine._time, "rest", counted)
    wake = running.engine._wake
    idle = idle_queues(running)

    def hear() -> None:
        wake.grant()
        running.engine.hear(heard(rank_states=idle))
        running.engine.idle_report()

    hear()
    drain(running, 4, 5, 6, 7)
    begun = resume(running, 1)
    assert begun.phase == "restoring"
    assert begun.until_emulated_s is not None
    steps = 0
    while running.engine._leases.going_on:
        assert wake.wanted or wake.waits  # an idle scheduler would make no step
        hear()
        steps += 1
        assert steps < 1_000
    wall_s = 0.02 * (begun.until_emulated_s - begun.since_emulated_s)
    assert steps <= 3 + wall_s / 0.02
    assert steps - 3 <= len(rested) <= steps
    assert running.parts.machine.ranks_up.all()
    hear()
    assert not wake.waits
