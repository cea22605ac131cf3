"""Routing by KV events beside routing by a guess, on conversations that caches do not all hold.

Each replica is vLLM's own cache of KV blocks, with its events as they travel; what is compared is
which part of the prompts' tokens these caches had.
"""

import json
import random
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from emulator.data import SMALL_MOE_DIR
from serving.policy.routing import prefix_aware
from serving.server.gateway.http.request_work import asked_in
from serving.server.replicas.held_blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    HeldBlocks,
    KvEventBatch,
    token_hashes,
)
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.prefix_memory import block_hashes
from serving.server.replicas.prompt_tokens import PromptReader
from serving.server.replicas.replica_place import ReplicaPlace
from tests.serving.plugin.engine_config import block_hasher

BLOCK_TOKENS = 32
CACHE_BLOCKS = 260
REPLICAS = 3
READER = PromptReader(SMALL_MOE_DIR)


def a_replica(number: int) -> LiveReplica:
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


class Cache:
    """One replica's cache: vLLM's, as its scheduler uses it."""

    def __init__(self, blocks: int) -> None:
        spec = FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self._manager = KVCacheManager(
            config,
            max_model_len=4096,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            enable_kv_cache_events=True,
        )
        self._served = 0

    def serve(self, tokens: list[int]) -> int:
        """Compute a prompt and let it go; its tokens that were there."""
        self._served += 1
        params = SamplingParams(max_tokens=1)
        request = Request(
            *(f"r{self._served}", tokens, params, None), block_hasher=block_hasher(BLOCK_TOKENS)
        )
        there, found = self._manager.get_computed_blocks(request)[:2]
        hits = int(found)
        new = self._manager.allocate_slots(request, len(tokens) - hits, hits, there)
        assert new is not None
        self._manager.free(request)
        return hits

    def reset(self) -> None:
        assert self._manager.reset_prefix_cache()

    def events(self) -> KvEventBatch:
        """As they travel."""
        batch = KVEventBatch(ts=0.0, events=self._manager.take_events() or [])
        return msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=KvEventBatch)


@dataclass
class Fleet:
    """Replicas with caches, routed by events, or by what they were sent."""

    by_events: bool
    hit_tokens: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.replicas = [a_replica(number) for number in range(REPLICAS)]
        self.caches = [Cache(CACHE_BLOCKS) for _ in self.replicas]
        if self.by_events:
            for each in self.replicas:
                each.prefixes = HeldBlocks(BLOCK_TOKENS)

    def serve(self, prompt: str, waiting_tokens: list[int]) -> None:
        """Route and serve a prompt while others hold so many tokens on each replica."""
        body = json.dumps({"prompt": prompt}).encode()
        tokens = READER.tokens(body)
        hashes = (
            token_hashes(tokens, BLOCK_TOKENS) if self.by_events else block_hashes(asked_in(body))
        )
        for replica, waiting in zip(self.replicas, waiting_tokens, strict=True):
            replica.load_tokens += waiting
        chosen = prefix_aware(hashes, self.replicas)
        for replica, waiting in zip(self.replicas, waiting_tokens, strict=True):
            replica.load_tokens -= waiting
        with self.replicas[chosen].holding(hashes, len(tokens)):
            self.hit_tokens += self.caches[chosen].serve(tokens.tolist())
            self.prompt_tokens += len(tokens)
        self.listen(chosen)

    def listen(self, number: int) -> None:
        prefixes = self.replicas[number].prefixes
        if isinstance(prefixes, HeldBlocks):
            prefixes.take(self.caches[number].events())

    def reset(self, number: int) -> None:
        """A replica's cache is emptied, as when it reads other weights."""
        self.caches[number].reset()
        self.listen(number)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens


def converse(*fleets: Fleet, seed: int) -> None:
    """Conversations of several turns, more than the caches hold, beside other work."""
    chance = random.Random(seed)
    words = ["alpha", "beta", "gamma", "delta", "return", "def", "self", "value", "index"]
    system = "You are a careful assistant. " * 12
    said = [system + f"Conversation {number}. " for number in range(60)]
    for turn in range(500):
        number = chance.choice(range(len(said)))
        said[number] = said[number][-5_000:] if len(said[number]) > 5_000 else said[number]
        said[number] += " ".join(chance.choice(words) for _ in range(40)) + ". "
        waiting = [chance.randrange(0, 700) for _ in range(REPLICAS)]
        for fleet in fleets:
            fleet.serve(said[number], waiting)
            if turn % 150 == 149:
                fleet.reset(turn // 150 % REPLICAS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_events_find_more_than_a_guess_where_caches_forget(seed: int) -> None:
    known, guessed = Fleet(by_events=True), Fleet(by_events=False)
    converse(known, guessed, seed=seed)

    assert known.prompt_tokens == guessed.prompt_tokens
    assert known.hit_rate > 1.1 * guessed.hit_rate, (known.hit_rate, guessed.hit_rate)


KEYS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
"""Prompts of blocks, each of one letter."""


def named(prompt: tuple[int, ...]) -> list[int | bytes]:
    """The engine's names of a prompt's blocks: of each and all before it."""
    return [bytes(prompt[: end + 1]) for end in range(len(prompt))]


def tokens_of(prompt: tuple[int, ...]) -> list[int]:
    return [letter for each in prompt for letter in [each] * 2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "remove", "clear", "begin", "end"]), st.integers(0, 2)
        ).flatmap(lambda kind: KEYS.map(lambda prompt: (*kind, prompt)))
    ),
    KEYS,
)
def test_held_blocks_are_those_of_one_rank_or_of_what_is_computed(
    events: list[tuple[str, int, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    held, ranks = HeldBlocks(2), [set(), set(), set()]  # type: ignore[var-annotated]
    computed: list[tuple[int, ...]] = []

    def hashes(prompt: tuple[int, ...]) -> tuple[int, ...]:
        return token_hashes(np.asarray(tokens_of(prompt), dtype=np.int32), 2)

    for kind, rank, prompt in events:
        told: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        if kind == "store":
            told = [
                BlockStored(
                    block_hashes=named(prompt),
                    parent_block_hash=None,
                    token_ids=tokens_of(prompt),
                    block_size=2,
                )
            ]
            ranks[rank].update(named(prompt))
        elif kind == "remove":
            told = [BlockRemoved(block_hashes=named(prompt)[-1:])]
            ranks[rank].discard(named(prompt)[-1])
        elif kind == "clear":
            told = [AllBlocksCleared()]
            ranks[rank].clear()
        elif kind == "begin":
            held.begin(hashes(prompt))
            computed.append(prompt)
        elif prompt in computed:
            held.end(hashes(prompt))
            computed.remove(prompt)
        held.take(KvEventBatch(ts=0.0, events=list(told), data_parallel_rank=rank))

    coming = {name for prompt in computed for name in named(prompt)}
    expected = 0
    for rank_blocks in ranks:
        names = named(asked)
        there = [name in rank_blocks or name in coming for name in names]
        expected = max(expected, [*there, False].index(False))
    assert held.hit_tokens(hashes(asked)) == 2 * expected
    assert held.blocks == sum(map(len, ranks))


def test_no_more_blocks_are_known_than_may_be() -> None:
    held = HeldBlocks(2, blocks_max=5)
    for letter in range(20):
        stored = BlockStored(
            block_hashes=[bytes([letter])],
            parent_block_hash=None,
            token_ids=[letter, letter],
            block_size=2,
        )
        held.take(KvEventBatch(ts=0.0, events=[stored], data_parallel_rank=letter % 2))
    newest = token_hashes(np.asarray([19, 19], dtype=np.int32), 2)

    assert held.blocks == 5
    assert held.hit_tokens(newest) == 2


def test_a_chat_is_read_as_the_model_s_template_makes_it() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": each} for each in ("Say", "a")]},
    ]
    plain = [messages[0], {"role": "user", "content": "Say\na"}]
    template = PreTrainedTokenizerFast.from_pretrained(SMALL_MOE_DIR)
    expected = template.apply_chat_template(
        plain, tokenize=True, add_generation_prompt=True, return_dict=False
    )

    assert READER.tokens(json.dumps({"messages": messages}).encode()).tolist() == expected
    assert READER.tokens(json.dumps({"prompt": [5, 6, 7]}).encode()).tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[", b"[]", b"{}", b'{"messages": 5}', b'{"messages": [5]}', b'{"prompt": null}'),
        *(b'{"prompt": [99999999999]}', b'{"prompt": ["a", "b"]}'),
        b'{"prompt": "a", "cache_salt": "s"}',
    ],
)
def test_what_is_no_single_plain_prompt_has_no_tokens(body: bytes) -> None:
    assert READER.tokens(body).size == 0
