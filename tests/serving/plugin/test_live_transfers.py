"""A whole engine whose ranks have roles: real KV moves between chips, in emulated time."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from emulator.chip.commands import SendKv, TakeKv
from emulator.specs.fault import Fault, FaultKind
from emulator.units import NS_PER_S
from serving.engine.kv_moves import KvTotals
from serving.engine.live_engine import LiveEngine
from serving.plugin.translate import TimedOutput
from serving.wire.control_call import FaultReport, InjectRequest
from tests.emulator.chip.in_process_fleet import InProcessFleet
from tests.serving.plugin.core_engine import Engine

pytestmark = pytest.mark.long

PROMPTS = {"a": (90, 50), "b": (20, 300), "c": (70, 50), "d": (33, 700), "e": (10, 20)}
"""Tokens of each prompt and its first one: the prefixes of a and c are shared."""


def serve(
    engine: Engine, events: Mapping[int, Callable[[], object]] | None = None
) -> dict[str, list[int]]:
    for name, (tokens, first) in PROMPTS.items():
        engine.add(name, tokens, first=first, max_tokens=12)
    return engine.serve(events or {})


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """The texts of three ranks that do both; no number of ranks writes others."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return serve(Engine(monkeypatch, 3))


def transfers(engine: Engine) -> KvTotals:
    return live(engine)._kv.totals


def live(engine: Engine) -> LiveEngine:
    return engine.executor.live_engine()


@pytest.mark.parametrize(
    "settings",
    [
        {"chips": 3, "prefill_ranks": 1},
        {"chips": 4, "prefill_ranks": 3},
        {"chips": 4, "tp": 2, "prefill_ranks": 1},
        {"chips": 4, "prefill_ranks": 2, "model": "qwen3-30b-a3b"},
    ],
)
def test_greedy_text_is_that_of_ranks_that_do_both(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    both = {name: value for name, value in settings.items() if name != "prefill_ranks"}
    expected = serve(Engine(monkeypatch, **both))
    engine = Engine(monkeypatch, **settings)

    assert serve(engine) == expected
    assert transfers(engine).kv_transfers == len(PROMPTS)
    assert not transfers(engine).kv_transfers_failed


def test_a_transfer_takes_the_time_of_its_bytes_and_draws_their_joules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(monkeypatch, 2, prefill_ranks=1, computes=False, model="qwen3-30b-a3b")
    engine.add("one", 200, max_tokens=4)
    reports = []
    while engine.scheduler.has_unfinished_requests():
        _, result, _ = engine.turn()
        assert isinstance(result, TimedOutput)
        assert result.report is not None
        reports.append(result.report)
    machine = engine.executor.machine
    cost = machine.sending_kv(from_rank=0, to_rank=1, tokens=200)

    assert cost.bytes_links == 200 * machine.model.kv_bytes_per_token
    telemetry = live(engine).telemetry()
    assert telemetry.kv_transfers == 1
    assert telemetry.kv_transfer_bytes == cost.bytes_links
    assert telemetry.kv_transfer_joules == pytest.approx(cost.joules)
    assert telemetry.kv_transfer_s == pytest.approx(cost.duration_ns / NS_PER_S)
    # Steps: four of 64 tokens at most, the wait, then three decodes.
    prefilled = next(report for report in reports if report.kv_received)
    assert prefilled.kv_received == ("one",)
    first_decode = reports[reports.index(prefilled) + 1]
    waited_s = live(engine)._time.pause_ns / NS_PER_S
    assert waited_s == pytest.approx(cost.duration_ns / NS_PER_S, abs=2e-9)
    assert first_decode.end_s - prefilled.end_s > waited_s
    charged = live(engine)._meters.ledger._charged
    assert charged.tolist() == pytest.approx([cost.joules / 2] * 2)


@pytest.mark.parametrize("chip", [0, 1, 2])
@pytest.mark.parametrize("turn", [2, 3, 4, 5])
def test_a_chip_that_is_lost_at_any_moment_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, chip: int, turn: int, expected: dict[str, list[int]]
) -> None:
    engine = Engine(monkeypatch, 3, prefill_ranks=1, spares=1)

    def lose() -> None:
        reply = engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
        assert isinstance(reply, FaultReport)
        assert reply.accepted

    assert serve(engine, {turn: lose}) == expected


@pytest.mark.parametrize("command", [SendKv, TakeKv])
def test_a_chip_that_dies_of_a_transfer_is_survived(
    monkeypatch: pytest.MonkeyPatch,
    command: type[SendKv] | type[TakeKv],
    expected: dict[str, list[int]],
) -> None:
    engine = Engine(monkeypatch, 3, prefill_ranks=1)
    fleet = live(engine)._live.tokens
    assert isinstance(fleet, InProcessFleet)
    fleet.doom(0 if command is SendKv else 1, command)

    assert serve(engine) == expected
    assert transfers(engine).kv_transfers_failed >= 1
    assert live(engine).telemetry().faults == 1


def test_a_cancelled_request_leaves_no_blocks_behind(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]]
) -> None:
    engine = Engine(monkeypatch, 2, prefill_ranks=1)
    gone = [
        lambda name=name: engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        for name in "ab"
    ]
    texts = serve(engine, {4: gone[0], 5: gone[1]})

    assert {name: texts[name] for name in "cde"} == {name: expected[name] for name in "cde"}
    for rank in engine.scheduler.ranks:
        pool = rank.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
