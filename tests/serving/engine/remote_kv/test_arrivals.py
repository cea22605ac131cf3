"""Parts of a prompt's KV as they come to an engine: when they are there, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.fabric.kv_transfer import layered_ready_ns
from emulator.specs.step import KvSource
from serving.engine.remote_kv.arrivals import KvArrivals, PushReader
from serving.engine.remote_kv.messages import Gone, Push, Taken, There
from serving.engine.wake_request import WakeRequest
from tests.serving.engine.remote_kv.exchanging_engines import facts

BLOCK_TOKENS = 4
LAYERS = 4
SOURCE = KvSource(host="here", port=1, engine_id="sender", request_id="a")
TOKEN_NS = 10
"""Of a part's transfer."""


class Reader:
    """An engine without numbers, whose ranks have `requests`; it has room for 100 tokens a rank."""

    def __init__(self, *requests: int | None) -> None:
        self.time: Any = SimpleNamespace(now_ns=0, accounted_ns=0)
        self.arrivals = KvArrivals()
        self.arrivals.bound(token_bytes=2, buffer_bytes=200, block_bytes=0, copies_bytes=0)
        self.arrivals.follow(self.time, WakeRequest(), lambda: requests)
        self.arrivals.ask(weights_of=lambda _: "weights", part_ns=self.part_ns)
        own, other = facts("reader", layout=None), facts("sender", layout=None)
        self.pushes = PushReader(self.arrivals, own, other)

    @staticmethod
    def part_ns(*, tokens: int, from_chips: int, **times: int) -> int:
        assert from_chips == 1
        return layered_ready_ns(transfer_ns=TOKEN_NS * tokens, layers=LAYERS, **times)

    def push(
        self, first_block: int, tokens: int, *, of: int, step_ns: int = 100, name: str = "a"
    ) -> Taken | Gone | None:
        """A part comes at the end of its step."""
        self.time.now_ns += step_ns
        push = Push(
            request_id=name,
            read=f"{name} {first_block}",
            first_block=first_block,
            blocks=-(-tokens // BLOCK_TOKENS),
            tokens=tokens,
            prompt_tokens=of,
            prompt=b"prompt",
            weights="weights",
            step_ns=step_ns,
            is_last=BLOCK_TOKENS * first_block + tokens == of,
        )
        return self.pushes.hear(push) or self.pushes.hear(There(read=push.read))

    def is_there(self, at_ns: int) -> bool:
        self.time.now_ns = at_ns
        came = self.arrivals.find(SOURCE, 0)
        return came is not None and self.arrivals.is_there(came)


def test_parts_that_are_faster_than_their_steps_are_there_with_the_last_ones_end() -> None:
    """By hand: 4 tokens take 40 ns, 10 a layer; the last layer but one, computed at 275, is there
    at 285, while the step computes its last, until 300.
    """
    reader = Reader(0)
    for number in range(3):
        assert not reader.is_there(100 * number), "a part is missing"
        assert isinstance(reader.push(number, 4, of=12), Taken)
    assert reader.is_there(300)
    assert sum(each.tokens for each in reader.arrivals.take_came()) == 12


def test_parts_that_are_slower_than_their_steps_wait_for_the_way() -> None:
    """By hand: 40 tokens take 400 ns, 100 a layer. The first part's layers are computed from 25 on,
    and three of them are there at 325; the second part's begin then, and are there at 625.
    """
    reader = Reader(0)
    reader.push(0, 40, of=80)
    reader.push(10, 40, of=80)
    assert not reader.is_there(624)
    assert reader.is_there(625)


@pytest.mark.long
@settings(max_examples=50)
@given(
    tokens=st.lists(st.integers(1, 5).map(lambda blocks: blocks * BLOCK_TOKENS), min_size=1),
    steps_ns=st.lists(st.integers(LAYERS, 2_000), min_size=1),
    rest=st.integers(0, BLOCK_TOKENS - 1),
)
def test_a_prompt_is_there_when_its_layers_have_gone_one_by_one(
    tokens: list[int], steps_ns: list[int], rest: int
) -> None:
    parts = [*tokens[: len(steps_ns)]]
    parts[-1] += rest
    del parts[5:]  # within the buffer
    reader, end_ns, free_ns, first_block = Reader(0), 0, 0, 0
    for part, step_ns in zip(parts, steps_ns, strict=False):
        assert isinstance(
            reader.push(first_block, part, of=sum(parts), step_ns=step_ns), Taken | Gone
        )
        begin_ns, end_ns = end_ns, end_ns + step_ns
        way_ns = free_ns
        for layer in range(1, LAYERS):  # the last comes while those before it are read
            way_ns = max(way_ns, begin_ns + layer * step_ns / LAYERS) + part * TOKEN_NS / LAYERS
        free_ns = max(way_ns, end_ns)
        first_block += part // BLOCK_TOKENS
    (came,) = reader.arrivals._arrivals.values()
    if came.is_whole:
        assert came.there_ns == pytest.approx(free_ns, abs=2 * len(parts))
        assert came.there_ns >= end_ns


def test_a_part_that_does_not_follow_the_one_before_it_gives_the_prompt_up() -> None:
    reader = Reader(0)
    reader.push(0, 4, of=12)
    gone = reader.push(2, 4, of=12)
    assert isinstance(gone, Gone)
    assert "the part before it has not come" in gone.reason
    assert not len(reader.arrivals)


def test_a_rank_has_room_for_so_much_and_another_for_as_much() -> None:
    reader = Reader(0, 0)
    answers = [reader.push(0, 60, of=64, name=name) for name in ("a", "b", "c")]
    assert [type(each) for each in answers] == [Taken, Taken, Gone]
    assert [each.rank for each in reader.arrivals._arrivals.values()] == [0, 1]
    reader.arrivals.lose(0)
    assert isinstance(reader.push(0, 60, of=64, name="c"), Taken)


def test_a_prompt_goes_to_the_rank_with_the_fewest_requests_that_takes_some() -> None:
    reader = Reader(None, 2, 1)
    for name in "abc":
        reader.push(0, 4, of=8, name=name)
    assert [each.rank for each in reader.arrivals._arrivals.values()] == [2, 1, 2]
    assert isinstance(Reader(None).push(0, 4, of=8), Gone)


def test_what_is_not_whole_goes_with_its_sender_and_what_is_with_its_lease() -> None:
    reader = Reader(0)
    reader.push(0, 4, of=4)
    reader.push(0, 4, of=8, name="b")
    assert reader.time.now_ns == 200
    reader.pushes.leave()
    assert [*reader.arrivals._arrivals] == [("sender", "a")]
    reader.arrivals.expire(100 + 49, 50)
    assert len(reader.arrivals) == 1
    reader.arrivals.expire(100 + 50, 50)
    assert not len(reader.arrivals)
