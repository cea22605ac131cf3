"""Two whole engines: the KV of a prompt goes to the one that decodes with the steps that compute
it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from emulator.fabric.kv_transfer import layered_ready_ns
from emulator.specs.fault import Fault, FaultKind
from emulator.ultraserver.handover_cost import kv_between_engines
from emulator.units import NS_PER_S
from serving.engine.remote_kv.arrivals import KvArrivals, kv_arrivals_of
from serving.wire.control_call import InjectRequest
from tests.serving.plugin.core_engine import Engine
from tests.serving.plugin.exchanging_pair import Make, exchanging_engines, live, pushed_to

pytestmark = pytest.mark.long

TOKENS = 150
"""Three steps of at most 64; nine blocks of 16, and six tokens in the tenth."""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    with exchanging_engines(monkeypatch, tmp_path) as make:
        yield make


def arrivals(engine: Engine) -> KvArrivals:
    """What was pushed to an engine."""
    return kv_arrivals_of(engine.executor.vllm_config.instance_id)


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def came_tokens(engine: Engine) -> int:
    return sum(each.tokens for each in arrivals(engine)._arrivals.values())


def prefilled(prefills: Engine, decodes: Engine, name: str, tokens: int, first: int = 50) -> Any:
    """The parameters in the response of a prompt, and how much had come before each step."""
    if not live(decodes)._heard.rank_states:
        decodes.turn()  # the first, in which its engine hears of its ranks
    prefills.add(name, tokens, first=first, max_tokens=1, kv_transfer_params=pushed_to(decodes))
    came = []
    while True:
        came.append(came_tokens(decodes))
        outputs = prefills.turn()[2]
        wait(lambda: not on_way(prefills))
        for output in outputs:
            if output.finish_reason is not None:
                prefills.turn()  # an engine that holds KV goes on
                return dict(output.kv_transfer_params or {}), came


def on_way(engine: Engine) -> bool:
    """Whether a part that an engine pushes has no answer yet."""
    remote = live(engine)._kv._remote
    assert remote is not None
    return any(part.to_chips is None for each in remote._pushing.values() for part in each.parts)


def until_idle(*engines: Engine) -> None:
    for engine in engines:
        for _ in range(2_000):
            if not engine.scheduler.has_requests():
                break
            engine.turn()
        assert not engine.scheduler.has_requests()


def alone(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[int]:
    engine = Engine(monkeypatch, 1, **settings)
    engine.add("a", TOKENS, max_tokens=12)
    return engine.serve({})["a"]


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"chips": 1}, {"chips": 1}),
        ({"chips": 2, "tp": 2}, {"chips": 1}),
        ({"chips": 1}, {"chips": 2, "tp": 2}),
    ],
)
def test_greedy_text_is_one_engines_and_parts_come_before_the_prompts_end(
    monkeypatch: pytest.MonkeyPatch, make: Make, prefill: dict[str, Any], decode: dict[str, Any]
) -> None:
    expected = alone(monkeypatch)
    prefills, decodes = make("kv_producer", **prefill), make("kv_consumer", **decode)
    params, came = prefilled(prefills, decodes, "a", TOKENS)
    assert came == [0, 64, 128]
    assert came_tokens(decodes) == TOKENS
    decodes.add("b", 8, first=900)
    decodes.serve({})  # its time stood while the parts came

    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    (output,) = decodes.turn()[2]
    assert [each.new_tokens for step in decodes.heard[-1] for each in step.scheduled] == [1]
    assert output.new_token_ids + decodes.serve({})["a"] == expected
    until_idle(prefills, decodes)
    assert not len(arrivals(decodes))
    for engine in (prefills, decodes):
        telemetry = live(engine).telemetry()
        assert (telemetry.kv_transfers, telemetry.kv_transfers_failed) == (1, 0)
        token_bytes = engine.executor.machine.model.kv_bytes_per_token
        assert telemetry.kv_transfer_bytes == TOKENS * token_bytes


def test_a_first_step_of_less_than_a_block_is_no_cached_prefix(make: Make) -> None:
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    prefills.add("b", 60, first=900, max_tokens=50)  # leaves 4 tokens of the step
    _, came = prefilled(prefills, decodes, "a", TOKENS)
    assert came[:2] == [0, 0]
    assert came_tokens(decodes) == TOKENS


def test_parts_take_the_time_and_joules_of_their_tokens_and_begin_with_their_step(
    make: Make,
) -> None:
    shape = {"computes": False, "model": "qwen3-30b-a3b"}
    prefills, decodes = make("kv_producer", **shape), make("kv_consumer", **shape)
    prefilled(prefills, decodes, "a", TOKENS)
    decodes.add("b", 8, first=900)
    decodes.serve({})  # books what came
    prefills.turn()
    machine = decodes.executor.machine
    costs = [
        kv_between_engines(machine.system, machine.model, tokens=tokens, from_chips=1, to_chips=1)
        for tokens in (64, 64, 22)
    ]
    for engine, side in ((prefills, 0), (decodes, 1)):
        telemetry = live(engine).telemetry()
        assert telemetry.kv_transfer_joules == pytest.approx(sum(c[side].joules for c in costs))
        taken_s = sum(c[side].duration_ns for c in costs) / NS_PER_S
        assert telemetry.kv_transfer_s == pytest.approx(taken_s)


def test_a_part_that_is_slower_than_its_step_is_waited_for(make: Make) -> None:
    """By hand: 4 layers, steps of 100 ns each, parts of 400 ns: a layer of each takes 100 ns. The
    first is computed at 25, so the way is taken until 425, with the last layer; what may be read
    without it is there at 325. The second begins when the first's way is free.
    """
    first_ns = layered_ready_ns(begin_ns=0, end_ns=100, free_ns=0, transfer_ns=400, layers=4)
    assert first_ns == 325
    second_ns = layered_ready_ns(
        begin_ns=100, end_ns=200, free_ns=first_ns, transfer_ns=400, layers=4
    )
    assert second_ns == 625

    prefills = make("kv_producer", computes=False)
    decodes = make("kv_consumer", computes=False)
    params, _ = prefilled(prefills, decodes, "a", TOKENS)
    (arrival,) = arrivals(decodes)._arrivals.values()
    later_ns = live(decodes)._time.now_ns + 10_000_000
    arrival.there_ns = later_ns
    decodes.add("a", TOKENS, kv_transfer_params=params)
    computes_ns = []
    while decodes.scheduler.has_unfinished_requests():
        if decodes.turn()[2]:
            computes_ns.append(live(decodes)._time.computes_ns)
    assert computes_ns[0] == later_ns
    until_idle(prefills, decodes)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_engine_that_ends_while_it_pushes_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, make: Make, steps: int
) -> None:
    expected = alone(monkeypatch)
    prefills, others = make("kv_producer"), make("kv_producer")
    decodes = make("kv_consumer")
    decodes.turn()
    prefills.add("a", TOKENS, max_tokens=1, kv_transfer_params=pushed_to(decodes))
    for _ in range(steps):
        prefills.turn()
        wait(lambda: not on_way(prefills))
    assert came_tokens(decodes) == min(64 * steps, TOKENS)
    prefills.executor.shutdown()
    if steps < 3:
        wait(lambda: not len(arrivals(decodes)))

    params, _ = prefilled(others, decodes, "a", TOKENS)
    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}
    until_idle(others, decodes)


def test_a_prompt_that_is_cancelled_leaves_nothing_where_it_went(make: Make) -> None:
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    decodes.turn()
    prefills.add("a", TOKENS, max_tokens=1, kv_transfer_params=pushed_to(decodes))
    prefills.turn()
    wait(lambda: not on_way(prefills))
    assert came_tokens(decodes) == 64
    prefills.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    prefills.add("b", 8, first=900)
    prefills.serve({})
    wait(lambda: not len(arrivals(decodes)))


def test_what_finds_no_room_is_read_after_the_prompt(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = alone(monkeypatch)
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    arrivals(decodes)._buffer_bytes = 100 * decodes.executor.machine.model.kv_bytes_per_token
    params, came = prefilled(prefills, decodes, "a", TOKENS)
    assert came == [0, 64, 0], "the second part is refused, and the first is given up"
    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}
    until_idle(prefills, decodes)


def test_another_engine_reads_what_was_pushed_elsewhere(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = alone(monkeypatch)
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    lost = make("kv_consumer", lease_s=0.5)
    params, _ = prefilled(prefills, lost, "a", TOKENS)
    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}
    assert came_tokens(lost) == TOKENS
    live(lost)._kv._remote.keep_leases(live(lost)._time.now_ns + NS_PER_S)  # type: ignore[union-attr]
    assert not len(arrivals(lost)), "until a lease has passed"
    until_idle(prefills, decodes)


def test_a_prefix_that_is_cached_where_it_is_computed_is_not_pushed(make: Make) -> None:
    """The engine that decodes may have it too, and reads the rest."""
    prefills, decodes = make("kv_producer"), make("kv_consumer")
    for number, tokens in enumerate((TOKENS, TOKENS + 40)):
        params, came = prefilled(prefills, decodes, f"a{number}", tokens)
        assert (max(came) > 0) == (number == 0)
        decodes.add(f"a{number}", tokens, kv_transfer_params=params)
        assert len(decodes.serve({})[f"a{number}"]) == 3
        until_idle(prefills, decodes)
    assert live(prefills).telemetry().kv_transfers == 2


def test_a_chip_that_is_lost_takes_what_was_pushed_to_it(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = alone(monkeypatch)
    prefills, decodes = make("kv_producer"), make("kv_consumer", 1, spares=1)
    params, _ = prefilled(prefills, decodes, "a", TOKENS)
    decodes.add("b", 8, first=900)
    decodes.turn()
    decodes.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)))
    decodes.serve({})
    assert not len(arrivals(decodes))
    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    assert decodes.serve({}) == {"a": expected}
    until_idle(prefills, decodes)


def test_of_several_ranks_the_one_that_parts_go_to_decodes(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    expected = alone(monkeypatch)
    prefills, decodes = make("kv_producer"), make("kv_consumer", 2)
    decodes.add("b", 8, first=900, max_tokens=60)
    for _ in range(3):
        decodes.turn()
    params, _ = prefilled(prefills, decodes, "a", TOKENS)
    assert [each.rank for each in arrivals(decodes)._arrivals.values()] == [1]
    decodes.turn()
    decodes.add("a", TOKENS, max_tokens=12, kv_transfer_params=params)
    outputs = {each.request_id: each.new_token_ids for each in decodes.turn()[2]}
    assert outputs["a"] == expected[:1]
    assert outputs["a"] + decodes.serve({})["a"] == expected
    until_idle(prefills, decodes)


def test_all_whose_kv_is_there_begin_to_decode_at_once_within_a_prefill_budget(make: Make) -> None:
    """Each takes a token of the step, which the policy counts with the decodes."""
    prefills = make("kv_producer")
    decodes = make("kv_consumer", prefill_policy="capped:16")
    params = {
        name: prefilled(prefills, decodes, name, 40, first=number * 100)[0]
        for number, name in enumerate("abc")
    }
    decodes.add("d", 8, first=900)
    decodes.serve({})  # its time stood while the parts came
    for number, name in enumerate("abc"):
        decodes.add(name, 40, first=number * 100, kv_transfer_params=params[name])
    assert {each.request_id for each in decodes.turn()[2]} == {*"abc"}
    decodes.serve({})
    until_idle(prefills, decodes)
