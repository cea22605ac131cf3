"""Reads of KV between two engines' ends: numbers arrive as they are, or a line says why not."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.checkpoint import check_weights
from emulator.compute.paged_kv import PagedKv
from emulator.data import SMALL_MOE_DIR
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.latent_attention import LatentAttention
from emulator.ultraserver.kv_parts import divided_kv
from emulator.units import NS_PER_S
from serving.engine.remote_kv.layout import ComingKv, KvLayout, numbers_of
from serving.engine.remote_kv.limits import PART_BYTES
from tests.serving.engine.remote_kv.exchanging_engines import (
    BLOCK_TOKENS,
    LAYOUT,
    SHORT,
    Holder,
    Reader,
    random_kv,
    wait_for,
)


def same(first: tuple[KvBlocks, ...], second: tuple[KvBlocks, ...]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a.keys, b.keys) and np.array_equal(a.values, b.values)
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_numbers_come_as_they_were_held(tp: int) -> None:
    kv = random_kv(5, tp=tp)
    with Holder(tp=tp) as holder, Reader() as reader:
        holder.hold("all", kv, blocks=5)
        holder.hold("rest", kv, blocks=5)
        assert same(reader.read(holder.port, "all", blocks=5).kv, kv)
        rest = tuple(KvBlocks(keys=each.keys[:, 3:], values=each.values[:, 3:]) for each in kv)
        came = reader.read(holder.port, "rest", blocks=2, first_block=3)
        assert same(came.kv, rest)


def test_an_engine_without_numbers_gives_none() -> None:
    with Holder(layout=None) as holder, Reader(layout=None) as reader:
        holder.hold("a", (), blocks=5)
        came = reader.read(holder.port, "a", blocks=5)
    assert (came.kv, came.reason) == ((), None)


def test_a_prompt_of_many_parts_comes_whole() -> None:
    layout = KvLayout(layers=3, heads=2, key_width=64, value_width=32, latent=False)
    blocks = 3 * PART_BYTES // layout.block_bytes(BLOCK_TOKENS) + 1
    kv = random_kv(blocks, layout=layout)
    assert sum(each.keys.nbytes + each.values.nbytes for each in kv) > 3 * PART_BYTES
    with Holder(layout=layout) as holder, Reader(layout=layout) as reader:
        holder.hold("a", kv, blocks=blocks)
        assert same(reader.read(holder.port, "a", blocks=blocks).kv, kv)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((), "it sends 0 of the 2560 bytes agreed"),
        (random_kv(4), "it sends 2048 of the 2560 bytes agreed"),
        (random_kv(6), "it sends more than the 2560 bytes agreed"),
        (random_kv(5) * 2, "it sends more than the 2560 bytes agreed"),
    ],
)
def test_numbers_that_are_not_as_many_as_agreed_are_one_line(
    held: tuple[KvBlocks, ...], words: str
) -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", held, blocks=5)
        came = reader.read(holder.port, "a", blocks=5)
        assert came.kv == ()
        assert came.reason == f"the engine at 127.0.0.1:{holder.port}: {words}"
        holder.hold("b", random_kv(5), blocks=5)
        assert reader.read(holder.port, "b", blocks=5).reason is None, "a new connection"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 3}, "its layers is 2, here it is 3"),
        ({"heads": 4}, "its heads is 2, here it is 4"),
        ({"key_width": 8}, "its key_width is 4, here it is 8"),
        ({"latent": True, "heads": 1}, "its heads is 2, here it is 1"),
    ],
)
def test_another_layout_is_refused_before_anything_is_asked_for(
    change: dict[str, int], words: str
) -> None:
    layout = KvLayout(
        **({"layers": 2, "heads": 2, "key_width": 4, "value_width": 4} | {"latent": False} | change)
    )
    with Holder() as holder, Reader(layout=layout) as reader:
        holder.hold("a", random_kv(5), blocks=5)
        reason = reader.read(holder.port, "a", blocks=5).reason
        assert reason is not None
        assert words in reason
        assert not holder.offers.get("a").is_read  # type: ignore[union-attr]


@pytest.mark.parametrize(("first_block", "blocks"), [(0, 4), (3, 3), (5, 1), (1, 5)])
def test_blocks_that_are_not_those_held_are_refused(first_block: int, blocks: int) -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        came = reader.read(holder.port, "a", blocks=blocks, first_block=first_block)
        assert came.reason == f"it has 5 blocks, not {first_block} and {blocks}"
        assert reader.read(holder.port, "a", blocks=5).reason is None, "it is held as before"


@given(
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 3, 4]),
    widths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    blocks=st.integers(1, 4),
    tp=st.integers(1, 4),
    most_bytes=st.integers(1, 100),
    data=st.data(),
)
def test_numbers_in_parts_of_any_size_are_the_same(
    layers: int,
    heads: int,
    widths: tuple[int, int],
    blocks: int,
    tp: int,
    most_bytes: int,
    data: st.DataObject,
) -> None:
    key_width, value_width = widths
    layout = KvLayout(
        layers=layers, heads=heads, key_width=key_width, value_width=value_width, latent=False
    )
    kv = random_kv(blocks, tp=tp, layout=layout)
    first = data.draw(st.integers(0, blocks - 1))
    coming = ComingKv(layout.shapes(tp, blocks=blocks - first, block_tokens=BLOCK_TOKENS))
    sent_bytes = 0
    for part in numbers_of(kv, first_block=first, most_bytes=most_bytes):
        coming.add(bytes(part))
        sent_bytes += len(part)
    expected = tuple(
        KvBlocks(keys=each.keys[:, first:], values=each.values[:, first:]) for each in kv
    )
    assert same(coming.whole(), expected)
    assert sent_bytes == (blocks - first) * layout.block_bytes(BLOCK_TOKENS)


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 3, 4])
@pytest.mark.parametrize("to_tp", [1, 2, 4])
def test_the_layout_is_that_of_the_chips_pools(latent: bool, tp: int, to_tp: int) -> None:
    architecture = check_weights(SMALL_MOE_DIR)
    if latent:
        of = LatentAttention(query_rank=4, kv_rank=8, nope_dim=4, rope_dim=4, value_dim=4)
        architecture = replace(architecture, latent=of, kv_heads=architecture.heads)
    layout = KvLayout.of(architecture)

    def pools(tp: int) -> list[PagedKv]:
        chips = architecture.attending_chips(tp)
        groups = architecture.groups // chips
        return [
            PagedKv.of(architecture, groups=groups, blocks=6, block_tokens=BLOCK_TOKENS)
            for _ in range(chips)
        ]

    key_width, value_width = architecture.kv_widths
    sources, targets = pools(tp), pools(to_tp)
    slots = np.arange(BLOCK_TOKENS, 4 * BLOCK_TOKENS)
    keys = np.random.default_rng(tp).standard_normal((len(slots), 1, key_width), np.float32)
    for number, pool in enumerate(sources):
        for layer in range(layout.layers):
            own = np.repeat(keys + layer, len(pool.layer(0)[0][0]), axis=1)
            own += 0.0 if latent else number
            pool.write(layer, slots, own, own[:, :, :value_width])
    read = [pool.read_blocks([1, 2, 3]) for pool in sources]
    kv = tuple(KvBlocks(keys=keys, values=values) for keys, values in read)
    sent = layout.sent(kv)
    arrays = [array for each in sent for array in (each.keys, each.values)]
    shapes = [array.shape for array in arrays]
    assert shapes == layout.shapes(tp, blocks=3, block_tokens=BLOCK_TOKENS)
    sent_bytes = sum(array.nbytes for array in arrays)
    assert sent_bytes == 3 * layout.block_bytes(BLOCK_TOKENS)
    if latent:
        assert sent_bytes == kv[0].keys.nbytes, "its values are among its keys"
    coming = ComingKv(shapes)
    for part in numbers_of(sent, first_block=0, most_bytes=1_000):
        coming.add(bytes(part))
    come = layout.whole(coming.whole())
    assert same(come, kv[:1] if latent else kv)
    for pool, each in zip(targets, divided_kv(come, len(targets), shared=latent), strict=True):
        pool.write_blocks([3, 4, 5], each.keys, each.values)
        assert np.array_equal(pool.read_blocks([3, 4, 5])[1], each.values)


HOLDS = """
import sys, time
from tests.serving.engine.remote_kv.exchanging_engines import Holder, random_kv
with Holder(port=int(sys.argv[1])) as holder:
    for name in sys.argv[2:]:
        holder.hold(name, random_kv(5), blocks=5)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.long
def test_an_engine_that_is_stopped_is_not_waited_for() -> None:
    port = Holder().port
    names = ("a", "b", "c")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(port), *names], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with Reader() as reader:
                assert reader.read(port, "a", blocks=5).reason is None
                os.kill(process.pid, signal.SIGSTOP)
                wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
                began_s = time.monotonic()
                came = reader.read(port, "b", blocks=5)
                assert came.reason == f"the engine at 127.0.0.1:{port}: no answer for 0.8 s"
                # A connection that is not accepted has a deadline too.
                assert "no key was proved in 0.5 s" in str(reader.read(port, "b", blocks=5).reason)
                assert time.monotonic() - began_s < 5.0
                os.kill(process.pid, signal.SIGCONT)
                wait_for(lambda: reader.read(port, "c", blocks=5).reason is None)
        finally:
            process.kill()


@pytest.mark.long
def test_a_reader_that_does_not_end_has_the_blocks_for_one_lease() -> None:
    lease_ns = NS_PER_S
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        holder.offers.expire(0, lease_ns)
        read = reader.begin(holder.port, "a", blocks=5)
        assert reader.came(read).reason is None
        assert not holder.offers.expire(lease_ns - 1, lease_ns), "a reader has a lease of its own"
        assert not holder.offers.expire(2 * lease_ns - 2, lease_ns)
        (late,) = holder.offers.expire(2 * lease_ns - 1, lease_ns)
        assert late.is_read
        assert holder.offers.take_ended(0) == ["a"]
        reason = wait_for(lambda: reader.came(read).reason)
        assert reason == "it was held for longer than kv_lease_duration"
        reader.sources.end(reader.source(holder.port, "a"), read, taken_tokens=0)
        assert not holder.offers.take_sent()


@pytest.mark.long
def test_heartbeats_renew_a_lease_until_there_is_no_need() -> None:
    lease_ns = NS_PER_S
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        offer = holder.offers.get("a")
        assert offer is not None

        def beaten(now_ns: int) -> bool:
            """Whether a heartbeat has let the lease begin anew at this time."""
            holder.offers.expire(now_ns, lease_ns)
            reader.sources.beat()
            with contextlib.suppress(AssertionError):
                return wait_for(lambda: offer.until_ns is None, 0.2)
            return False

        assert not beaten(0), "no request waits"
        reader.sources.await_room(reader.source(holder.port, "a"), "here")
        assert beaten(lease_ns - 1)
        assert beaten(2 * lease_ns - 2), "2 leases after the prompt"
        read = reader.begin(holder.port, "a", blocks=5)
        assert reader.came(read).reason is None
        assert beaten(3 * lease_ns - 3), "while it is read"
        reader.sources.end(reader.source(holder.port, "a"), read, taken_tokens=0)
        wait_for(lambda: len(holder.offers) == 0)


def test_the_end_of_a_read_ends_what_is_held_once() -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        read = reader.begin(holder.port, "a", blocks=5)
        reader.came(read)
        assert not holder.offers.take_sent()
        reader.sources.end(reader.source(holder.port, "a"), read, taken_tokens=4)
        (sent,) = wait_for(holder.offers.take_sent)
        assert (sent.tokens, sent.to_chips) == (4, 1)
        assert holder.offers.take_ended(0) == ["a"]
        assert len(holder.offers) == 0


def test_a_reader_waits_for_numbers_that_are_about_to_be_there() -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        offer = holder.offers.get("a")
        assert offer is not None
        offer.kv = None
        read = reader.begin(holder.port, "a", blocks=5)
        time.sleep(0.05)
        assert reader.sources.came(read) is None
        holder.offers.has_read(offer, random_kv(5), weights="weights")
        assert reader.came(read).reason is None


@pytest.mark.long
def test_numbers_that_never_come_are_said_to_be_gone_before_the_reader_gives_up() -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", (), blocks=5)
        offer = holder.offers.get("a")
        assert offer is not None
        offer.kv = None
        began_s = time.monotonic()
        assert reader.read(holder.port, "a", blocks=5).reason == "it is not held here, or no longer"
        assert SHORT.stall_wall_s <= time.monotonic() - began_s


def test_copies_on_the_host_have_a_bound() -> None:
    holder = Holder()
    holder.offers.bound(block_bytes=LAYOUT.block_bytes(BLOCK_TOKENS), bytes_max=5 * 512)
    assert holder.offers.has_room(5)
    assert not holder.offers.has_room(6)
    holder.hold("a", (), blocks=3)
    assert holder.offers.has_room(2)
    assert not holder.offers.has_room(3)
    holder.offers.end("a")
    assert holder.offers.has_room(5)


def test_one_thread_serves_all_and_ends() -> None:
    before = set(threading.enumerate())
    with Holder() as holder, Reader() as reader:
        for number in range(20):
            holder.hold(f"{number}", random_kv(2), blocks=2)
        reads = [reader.begin(holder.port, f"{number}", blocks=2) for number in range(20)]
        assert {reader.came(read).reason for read in reads} == {None}
        others = {each.name for each in set(threading.enumerate()) - before}
        assert {name for name in others if not name.startswith("asyncio")} == {"kv-exchange"}
    left = {each.name for each in set(threading.enumerate()) - before}
    assert "kv-exchange" not in left
