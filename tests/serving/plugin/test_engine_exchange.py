"""Two whole engines, one that prefills and one that decodes: KV goes over a socket between them."""

import logging
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from emulator.specs.fault import Fault, FaultKind
from emulator.ultraserver.handover_cost import kv_between_engines
from emulator.units import NS_PER_S
from serving.engine.remote_kv.offers import kv_offers_of
from serving.wire.control_call import FaultReport, InjectRequest
from tests.serving.plugin.core_engine import Engine
from tests.serving.plugin.exchanging_pair import ASKED, Make, exchanging_engines, live

pytestmark = pytest.mark.long

PROMPTS = {"a": (90, 50), "b": (20, 300), "c": (70, 50), "d": (33, 700), "e": (10, 20)}
"""Tokens of each prompt and its first one: the prefixes of a and c are shared."""


@pytest.fixture
def make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Make]:
    """Makes engines whose log `caplog` has, also where vLLM sets it up within the test."""
    log = logging.getLogger("vllm")
    with exchanging_engines(monkeypatch, tmp_path) as make:

        def heard(*arguments: Any, **more: Any) -> Engine:
            engine = make(*arguments, **more)
            monkeypatch.setattr(log, "propagate", True)
            return engine

        yield heard


def prefilled(engine: Engine, name: str, tokens: int, *, first: int = 50) -> dict[str, Any]:
    """The parameters in the response of a prompt."""
    engine.add(name, tokens, first=first, max_tokens=1, kv_transfer_params=ASKED)
    while True:
        for output in engine.turn()[2]:
            if output.finish_reason is not None:
                engine.turn()  # an engine that holds KV goes on
                return dict(output.kv_transfer_params or {})


def until_idle(*engines: Engine) -> None:
    """Let engines go on until no request and no KV is left."""
    for engine in engines:
        for _ in range(2_000):
            if not engine.scheduler.has_requests():
                break
            engine.turn()
        assert not engine.scheduler.has_requests()


def used_blocks(engine: Engine) -> list[int]:
    """Blocks of each rank that are in use."""
    pools = [rank.kv_cache_manager.block_pool for rank in engine.scheduler.ranks]
    return [pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() for pool in pools]


def texts_apart(prefills: Engine, decodes: Engine) -> dict[str, list[int]]:
    for name, (tokens, first) in PROMPTS.items():
        params = prefilled(prefills, name, tokens, first=first)
        decodes.add(name, tokens, first=first, max_tokens=12, kv_transfer_params=params)
    return decodes.serve({})


def texts_together(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[str, list[int]]:
    engine = Engine(monkeypatch, **settings)
    for name, (tokens, first) in PROMPTS.items():
        engine.add(name, tokens, first=first, max_tokens=12)
    return engine.serve({})


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"chips": 1}, {"chips": 1}),
        ({"chips": 2}, {"chips": 2}),
        ({"chips": 2, "tp": 2}, {"chips": 1}),
        ({"chips": 1}, {"chips": 4, "tp": 2}),
        ({"chips": 2, "model": "qwen3-30b-a3b"}, {"chips": 1, "model": "qwen3-30b-a3b"}),
        ({"chips": 1, "computes": False}, {"chips": 1, "computes": False}),
    ],
)
def test_greedy_text_is_that_of_one_engine_and_no_prompt_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    prefill: dict[str, Any],
    decode: dict[str, Any],
) -> None:
    expected = texts_together(monkeypatch, **decode)
    prefills, decodes = make("kv_producer", **prefill), make("kv_consumer", **decode)

    assert texts_apart(prefills, decodes) == expected
    until_idle(prefills, decodes)
    for engine in (prefills, decodes):
        assert live(engine).telemetry().kv_transfers == len(PROMPTS)
        assert not live(engine).telemetry().kv_transfers_failed
        assert not any(used_blocks(engine))
    assert live(prefills).telemetry().output_tokens == 0, "its tokens are thrown away"
    assert live(decodes).telemetry().output_tokens == sum(map(len, expected.values()))
    if decode.get("computes", True):
        computed = [item for steps in decodes.heard for step in steps for item in step.scheduled]
        assert {item.new_tokens for item in computed} == {1}


def test_a_transfer_takes_the_time_of_a_plans_link_and_both_sides_bear_its_joules(
    make: Make,
) -> None:
    shape = {"computes": False, "model": "qwen3-30b-a3b"}
    prefills, decodes = make("kv_producer", **shape), make("kv_consumer", **shape)
    params = prefilled(prefills, "one", 200)
    decodes.add("one", 200, max_tokens=2, kv_transfer_params=params)
    begin_ns = live(decodes)._time.now_ns
    computes_ns = []
    while decodes.scheduler.has_unfinished_requests():
        if decodes.turn()[2]:
            computes_ns.append(live(decodes)._time.computes_ns)
    until_idle(prefills)

    machine = decodes.executor.machine
    sent, received = kv_between_engines(
        machine.system, machine.model, tokens=200, from_chips=1, to_chips=1
    )
    within = machine.model.kv_bytes_per_token * 200
    assert computes_ns[0] == begin_ns + received.duration_ns
    for engine, cost in ((prefills, sent), (decodes, received)):
        telemetry = live(engine).telemetry()
        assert telemetry.kv_transfer_bytes == within
        assert telemetry.kv_transfer_joules == pytest.approx(cost.joules)
        assert telemetry.kv_transfer_s == pytest.approx(cost.duration_ns / NS_PER_S)


def test_what_is_cached_where_it_decodes_does_not_cross(make: Make) -> None:
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    sent = []
    for name in ("first", "again"):
        params = prefilled(prefills, name, 90)
        decodes.add(name, 90, kv_transfer_params=params)
        decodes.serve({})
        until_idle(prefills)
        sent.append(live(prefills).telemetry().kv_transfer_bytes)
    token_bytes = prefills.executor.machine.model.kv_bytes_per_token
    assert sent == [90 * token_bytes, (90 + 10) * token_bytes], "five blocks of 16 are there"


def test_an_engine_that_ends_in_the_middle_of_a_transfer_costs_no_text(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = texts_together(monkeypatch, chips=1)["a"]
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    decodes.add("a", 90, max_tokens=12, kv_transfer_params=prefilled(prefills, "a", 90))
    monkeypatch.setattr("serving.engine.kv_moves.KvMoves.end", lambda *_: ())
    decodes.turn()  # begins; nothing ends
    (way,) = live(decodes)._kv._under_way
    remote = live(decodes)._kv.remote
    assert remote is not None
    _wait(lambda: remote.came(way.transfer))
    assert not remote.has_failed(way.transfer), "its bytes are here, its time has not passed"
    monkeypatch.undo()
    prefills.executor.shutdown()
    _wait(lambda: remote.has_failed(way.transfer))

    assert decodes.serve({}) == {"a": expected}
    assert live(decodes).telemetry().kv_transfers_failed == 1
    assert not any(used_blocks(decodes))


def test_an_engine_that_has_ended_before_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = texts_together(monkeypatch, chips=1)["a"]
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    params = prefilled(prefills, "a", 90)
    prefills.executor.shutdown()
    decodes.add("a", 90, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"remote_engine_id": "another"}, "is there now, not another"),
        ({"remote_request_id": "another"}, "it is not held here, or no longer"),
        ({"remote_port": 1}, "Connection refused"),
        ({"remote_host": "a..b"}, "a..b"),
    ],
)
def test_stale_parameters_are_one_line_and_the_prompt_is_computed(
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, Any],
    words: str,
) -> None:
    expected = texts_together(monkeypatch, chips=1)["a"]
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    params = prefilled(prefills, "a", 90) | wrong
    decodes.add("a", 90, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}
    (line,) = _warnings(caplog)
    assert line.startswith("request a is computed here, as its KV does not come: ")
    assert words in line


def test_parameters_of_an_engine_that_no_system_has_cost_no_more_than_the_prompt(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = texts_together(monkeypatch, chips=1)["a"]
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    params = prefilled(prefills, "a", 90) | {"tp_size": 144}
    decodes.add("a", 90, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}


@pytest.mark.parametrize("cancelled", [True, False])
def test_two_requests_with_the_same_parameters_both_have_their_text(
    monkeypatch: pytest.MonkeyPatch, make: Make, cancelled: bool
) -> None:
    expected = texts_together(monkeypatch, chips=1)["a"]
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    params = prefilled(prefills, "a", 90)
    for name in ("a", "again"):
        decodes.add(name, 90, max_tokens=12, kv_transfer_params=dict(params))
    if cancelled:
        decodes.turn()
        decodes.scheduler.finish_requests("again", RequestStatus.FINISHED_ABORTED)
    names = ("a",) if cancelled else ("a", "again")
    assert decodes.serve({}) == dict.fromkeys(names, expected)
    until_idle(decodes, prefills)
    assert live(decodes).telemetry().kv_transfers == 1
    assert live(decodes).telemetry().kv_transfers_failed == 1
    assert live(prefills).telemetry().kv_transfers == 1
    for engine in (prefills, decodes):
        assert not any(used_blocks(engine))


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        ((90, 300), {}, "it is of another prompt"),
        ((120, 50), {}, "it is of 90 tokens, the prompt has 120"),
        ((90, 50), {"kv_cache_dtype": "fp8"}, "its token_bytes is"),
        ((90, 50), {"computes": False}, "its computes is True, here it is False"),
    ],
)
def test_kv_that_does_not_fit_is_not_read(
    make: Make,
    caplog: pytest.LogCaptureFixture,
    prompt: tuple[int, int],
    settings: dict[str, Any],
    words: str,
) -> None:
    prefills, decodes = make("kv_producer"), make("kv_consumer", **settings)
    params = prefilled(prefills, "a", 90)
    tokens, first = prompt
    decodes.add("a", tokens, first=first, kv_transfer_params=params)
    assert len(decodes.serve({})["a"]) == 3
    (line,) = [each for each in _warnings(caplog) if "is computed here" in each]
    assert words in line


def test_an_engine_with_another_key_gets_nothing(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other.key"
    other.write_text("o" * 40)
    other.chmod(0o600)
    prefills = make("kv_producer")
    decodes = make("kv_consumer", kv_key_file=str(other))
    decodes.add("a", 90, kv_transfer_params=prefilled(prefills, "a", 90))
    assert len(decodes.serve({})["a"]) == 3
    refused, computed = sorted(_warnings(caplog))
    assert refused == "KV port: a connection is refused: a stranger does not know the key"
    assert "has it another one?" in computed


def test_a_request_that_is_cancelled_at_any_moment_leaves_no_blocks(make: Make) -> None:
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    prefills.add("early", 90, max_tokens=1, kv_transfer_params=ASKED)
    prefills.turn()
    prefills.scheduler.finish_requests("early", RequestStatus.FINISHED_ABORTED)
    until_idle(prefills)
    assert not any(used_blocks(prefills))
    for turns in range(4):
        name = f"after{turns}"
        params = prefilled(prefills, name, 90 + turns, first=200 * turns)
        assert any(used_blocks(prefills)), "held"
        decodes.add(name, 90 + turns, first=200 * turns, kv_transfer_params=params)
        for _ in range(turns):
            decodes.turn()
        decodes.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        until_idle(decodes, prefills)
        assert not any(used_blocks(decodes) + used_blocks(prefills)), turns


def test_kv_that_no_engine_asks_for_is_freed_after_its_lease(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    prefills = make("kv_producer", lease_s=0.2, clock="real")
    began_s = time.monotonic()
    prefilled(prefills, "a", 90)
    until_idle(prefills)
    assert time.monotonic() - began_s >= 0.2
    assert not any(used_blocks(prefills))
    (line,) = _warnings(caplog)
    assert "no engine has asked for it within kv_lease_duration, 0.2 emulated seconds" in line


def test_a_lease_ends_while_a_step_is_held(make: Make) -> None:
    prefills = make("kv_producer", lease_s=0.0003, clock="dilated:1000")
    name = prefilled(prefills, "a", 20)["remote_request_id"]
    offers = kv_offers_of(prefills.executor.vllm_config.instance_id)
    prefills.add("b", 8, max_tokens=1)
    has_ended = False
    while not prefills.turn()[2]:
        has_ended |= offers.get(name) is None
    assert has_ended


def test_a_request_whose_id_no_other_engine_takes_is_not_held(make: Make) -> None:
    prefills = make("kv_producer", computes=False)
    assert "remote_request_id" not in prefilled(prefills, "x" * 257, 20)
    assert not any(used_blocks(prefills))
    assert prefilled(prefills, "x" * 256, 20)["remote_request_id"] == "x" * 256


def test_an_engine_that_says_it_has_more_chips_than_there_are_ends_no_other(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    prefills = make("kv_producer", computes=False)
    name = prefilled(prefills, "a", 90)["remote_request_id"]
    offers = kv_offers_of(prefills.executor.vllm_config.instance_id)
    offers.end(name, sent_tokens=90, to_chips=10**6)
    until_idle(prefills)
    prefills.add("b", 8, max_tokens=3)
    assert len(prefills.serve({})["b"]) == 3
    assert not live(prefills).telemetry().kv_transfers
    assert "KV that went to another engine is not booked" in caplog.text


@pytest.mark.parametrize("clock", ["virtual", "dilated:1000"])
def test_kv_is_held_while_its_request_waits_for_a_seat(make: Make, clock: str) -> None:
    """Also where a step of the engine that waits is held for longer than the lease."""
    prefills = make("kv_producer", lease_s=0.3)
    decodes = make("kv_consumer", lease_s=0.3, clock=clock)
    for number in range(6):  # as many as there are seats
        decodes.add(f"long{number}", 8, first=100 * number, max_tokens=400)
    decodes.turn()
    decodes.add("a", 90, kv_transfer_params=prefilled(prefills, "a", 90))
    for _ in range(2):  # steps, of which the second is decided with it
        while not decodes.turn()[2]:
            pass
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        decodes.turn()
        prefills.turn()
        time.sleep(0.01)
    assert any(used_blocks(prefills)), "three leases later"
    for number in range(6):
        decodes.scheduler.finish_requests(f"long{number}", RequestStatus.FINISHED_ABORTED)
    assert len(decodes.serve({})["a"]) == 3
    until_idle(prefills, decodes)
    assert live(decodes).telemetry().kv_transfers == 1


def test_an_idle_engine_whose_time_does_not_pass_ends_a_lease_by_the_wall(make: Make) -> None:
    prefills = make("kv_producer", lease_s=0.2)
    began_s = time.monotonic()
    prefilled(prefills, "a", 90)
    held_ns = live(prefills)._time.now_ns
    until_idle(prefills)
    assert time.monotonic() - began_s >= 0.2
    assert not any(used_blocks(prefills))
    prefills.add("b", 20, first=300)
    prefills.serve({})
    assert live(prefills)._time.now_ns - held_ns >= 0.2 * NS_PER_S, "the machine has waited"


def test_kv_that_the_host_has_no_memory_for_is_not_offered(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    available = namedtuple("available", "available")(0)
    monkeypatch.setattr("serving.plugin.kv_exchange.psutil.virtual_memory", lambda: available)
    prefills = make("kv_producer")  # one context of 512 tokens in any case
    params = [prefilled(prefills, name, 300, first=100) for name in ("a", "b")]
    assert params[0]["do_remote_prefill"]
    assert "do_remote_prefill" not in params[1]
    assert "KV of request b is not held for another engine" in caplog.text


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("side", ["prefills", "decodes"])
def test_a_chip_that_is_lost_on_either_side_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, make: Make, side: str, turns: int
) -> None:
    expected = texts_together(monkeypatch, chips=2)["a"]
    prefills = make("kv_producer", 2, spares=1)
    decodes = make("kv_consumer", 2, spares=1)
    params = prefilled(prefills, "a", 90)
    decodes.add("a", 90, max_tokens=12, kv_transfer_params=params)
    texts: list[int] = []
    for _ in range(turns):
        texts += [token for output in decodes.turn()[2] for token in output.new_token_ids]
    hit = prefills if side == "prefills" else decodes
    reply = hit.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)))
    assert isinstance(reply, FaultReport)
    assert reply.accepted
    prefills.turn()
    assert texts + decodes.serve({}).get("a", []) == expected
    until_idle(prefills, decodes)
    assert not any(used_blocks(decodes) + used_blocks(prefills))


def _wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    names = ("vllm.serving.engine.remote_kv",)
    return [each.getMessage() for each in caplog.records if each.name.startswith(names)]
