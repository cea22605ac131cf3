"""A whole engine whose ranks have roles: real KV moves between chips, in emulated time."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from emulator.chip.commands import SendKv, TakeKv
from emulator.specs.fault import Fault, FaultKind
from emulator.ultraserver.handover_cost import HandoverCost
from emulator.units import NS_PER_S
from serving.engine.kv_moves import KvTotals
from serving.engine.live_engine import LiveEngine
from serving.plugin.translate import TimedOutput
from serving.policy.rank_roles import RankRole
from serving.wire.control_call import (
    FaultReport,
    InjectRequest,
    RankWithRole,
    Refusal,
    RolesReport,
    RolesRequest,
    SetRoleRequest,
)
from tests.emulator.chip.in_process_fleet import InProcessFleet
from tests.half_of_all import half_of_all
from tests.serving.plugin.core_engine import Engine

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


@pytest.mark.long
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
    costs = [machine.sending_kv(from_rank=0, to_rank=1, tokens=n) for n in (64, 64, 64, 8)]
    cost = sum(costs, start=HandoverCost())

    assert cost.bytes_links == 200 * machine.model.kv_bytes_per_token
    telemetry = live(engine).telemetry()
    assert telemetry.kv_transfers == 1
    assert telemetry.kv_transfer_bytes == cost.bytes_links
    assert telemetry.kv_transfer_joules == pytest.approx(cost.joules)
    assert telemetry.kv_transfer_s == pytest.approx(cost.duration_ns / NS_PER_S)
    # Steps: four of 64 tokens at most, each sent layer by layer, then at once three decodes.
    assert [len(report.kv_received) for report in reports] == [1, 1, 1, 1, 0, 0, 0]
    assert not live(engine)._time.pause_ns
    charged = live(engine)._meters.ledger._charged
    assert charged.tolist() == pytest.approx([cost.joules / 2] * 2)


@pytest.mark.long
@pytest.mark.parametrize(("chip", "turn"), half_of_all([0, 1, 2], [2, 3, 4, 5]))
def test_a_chip_that_is_lost_at_any_moment_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, chip: int, turn: int, expected: dict[str, list[int]]
) -> None:
    engine = Engine(monkeypatch, 3, prefill_ranks=1, spares=1)

    def lose() -> None:
        reply = engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
        assert isinstance(reply, FaultReport)
        assert reply.accepted

    assert serve(engine, {turn: lose}) == expected


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("turn", [1, 3, 6, 9])
def test_a_rank_that_changes_its_role_hands_its_requests_over_and_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    expected = serve(Engine(monkeypatch, 3))
    engine = Engine(monkeypatch, 3, prefill_ranks=1)

    def swap() -> None:
        for rank, role in ((1, RankRole.PREFILL), (0, RankRole.DECODE)):
            reply = engine.control(SetRoleRequest(rank=rank, role=role))
        assert isinstance(reply, RolesReport)
        assert [each.role for each in reply.ranks] == ["decode", "prefill", "decode"]

    assert serve(engine, {turn: swap}) == expected
    engine.turn()
    assert engine.control(RolesRequest()) == RolesReport(
        ranks=tuple(
            RankWithRole(rank=rank, role=RankRole(role))
            for rank, role in enumerate(("decode", "prefill", "decode"))
        )
    )
    for rank in engine.scheduler.ranks:
        pool = rank.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


@pytest.mark.long
def test_roles_that_cannot_be_are_refused_by_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 2, prefill_ranks=1)
    engine.turn()
    refused = engine.control(SetRoleRequest(rank=1, role=RankRole.PREFILL))
    assert isinstance(refused, Refusal)
    assert refused.field == "role"
    without = Engine(monkeypatch, 2)
    without.turn()
    whole = engine.control(SetRoleRequest(rank=0, role=RankRole.BOTH, all_ranks=True))
    assert isinstance(whole, Refusal)
    expected = "--rank, as this is no replica of a service with --replica-roles"
    assert whole.message == f"rank=(none): expected {expected}"
    refused = without.control(SetRoleRequest(rank=1, role=RankRole.PREFILL))
    assert isinstance(refused, Refusal)
    assert refused.message == "prefill_ranks=0: expected a server with --prefill-ranks, for roles"


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
