"""Which replica a prompt goes to, by what replicas hold and what they were sent before."""

import json

from hypothesis import given
from hypothesis import strategies as st

from serving.policy.routing import least_loaded, prefix_aware
from serving.server.gateway.http.request_work import asked_in
from serving.server.replicas.held_blocks import HeldBlocks
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.prefix_memory import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    PrefixMemory,
    block_hashes,
)
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_roles import RequestPart


def replica(number: int) -> LiveReplica:
    place = ReplicaPlace(
        number=number,
        ultraserver="0",
        first_chip=number,
        chips=1,
        visible_cores="0-3",
        control_port=0,
        console_port=0,
    )
    return LiveReplica(place=place)


def hashes_of(*turns: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": turn} for turn in turns]
    return block_hashes(asked_in(json.dumps({"messages": messages}).encode()))


LONG = "x" * (8 * BLOCK_BYTES)


def test_a_conversation_goes_where_its_beginning_is() -> None:
    replicas = [replica(0), replica(1)]
    with replicas[1].holding(hashes_of(LONG), 500):
        pass

    assert prefix_aware(hashes_of(LONG, "and then?"), replicas) == 1
    assert prefix_aware(hashes_of("y" * 9 * BLOCK_BYTES), replicas) == 0


def test_a_prefix_does_not_outweigh_a_longer_wait() -> None:
    replicas = [replica(0), replica(1)]
    with replicas[1].holding(hashes_of(LONG), 8 * BLOCK_TOKENS):
        assert prefix_aware(hashes_of(LONG, "b"), replicas) == 0  # it would save as much as waits
        assert least_loaded(hashes_of(LONG), replicas) == 0
    assert prefix_aware(hashes_of(LONG, "b"), replicas) == 1


def test_a_request_counts_until_its_end_with_what_it_has_made() -> None:
    one = replica(0)
    with one.holding((), 10) as held:
        held.made(3)
        assert (one.load_tokens, one.in_flight) == (13, 1)
    assert (one.load_tokens, one.in_flight, one.requests) == (0, 0, 1)


def test_a_prompt_is_to_be_computed_until_its_first_token() -> None:
    one = replica(0)
    with one.holding((), 9, RequestPart.PROMPT) as held, one.holding((), 5, RequestPart.REST):
        assert (one.prompt_tokens, one.decodes) == (9, 1)
        held.made(1)
        assert (one.prompt_tokens, one.decodes) == (0, 2)
    assert (one.prompt_tokens, one.decodes) == (0, 0)


def test_what_a_cache_is_known_to_have_is_not_to_be_computed_and_a_guess_is() -> None:
    hashes, tokens = hashes_of(LONG), 9 * BLOCK_TOKENS
    known, guessed = replica(0), replica(1)
    known.prefixes = HeldBlocks(BLOCK_TOKENS)
    left = {}
    for one in (known, guessed):
        with one.holding(hashes, tokens, RequestPart.PROMPT) as first:
            first.made(1)
            assert one.prefixes.hit_tokens(hashes) >= 8 * BLOCK_TOKENS
            with one.holding(hashes, tokens, RequestPart.PROMPT):
                left[one.place.number] = one.prompt_tokens
    assert left == {0: tokens - len(hashes) * BLOCK_TOKENS, 1: tokens}


@given(st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=20), st.integers(1, 8))
def test_no_more_blocks_are_remembered_than_may_be(
    prompts: list[list[int]], blocks_max: int
) -> None:
    memory = PrefixMemory(blocks_max)
    for prompt in prompts:
        memory.begin(tuple(dict.fromkeys(prompt)))

    assert memory.hit_tokens(()) == 0
    if prompts:
        last = tuple(dict.fromkeys(prompts[-1]))
        assert memory.hit_tokens(last) == min(len(last), blocks_max) * BLOCK_TOKENS


def test_a_replica_that_has_started_anew_remembers_nothing() -> None:
    memory = PrefixMemory()
    memory.begin((1, 2))
    memory.clear()

    assert memory.hit_tokens((1, 2)) == 0
