"""vLLM's KV connector of a rank: the KV of prompts that other ranks of the engine have computed.

A request that goes on from its first rank leaves its blocks there, held (`PromptKv`). The scheduler
of its next rank asks its connector what can be loaded, allocates blocks when it has room, and waits
for the load: vLLM's own way. The metadata of its decision has the transfers that begin with it; the
engine times them, and its chips carry them out (`serving.engine.kv_moves`).
"""

import copy
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from emulator.specs.step import KvMove, KvTransfer
from serving.policy.kv_in_flight import KvInFlight

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput


def with_connector(vllm_config: "VllmConfig", connector: type[KVConnectorBase_V1]) -> "VllmConfig":
    """A copy of the config for the ranks' schedulers, which then make such connectors."""
    given = vllm_config.kv_transfer_config or KVTransferConfig()
    # vLLM warns in every one that its interface may change.
    logging.getLogger(KVConnectorBase_V1.__module__).setLevel(logging.ERROR)
    config = copy.copy(vllm_config)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=connector.__name__,
        kv_connector_module_path=connector.__module__,
        kv_connector_extra_config=given.kv_connector_extra_config,
        engine_id=given.engine_id,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
    )
    return config


@dataclass(slots=True, kw_only=True)
class HeldKv:
    """The KV of a request's first `tokens` tokens, in blocks of the rank that computed them.

    `on_way`: it is being sent to another rank.
    """

    rank: int
    pool: "BlockPool"
    blocks: Sequence["KVCacheBlock"]
    tokens: int
    on_way: bool = False


class PromptKv:
    """KV that requests left behind, by request, until another rank has it or none needs it."""

    def __init__(self, in_flight: KvInFlight) -> None:
        self._held: dict[str, HeldKv] = {}
        self._in_flight = in_flight

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, number: int, rank: Scheduler, request: Request) -> None:
        """Keep the blocks of a running request of rank `number`, which may then be freed."""
        assert request.request_id not in self._held, "its KV is held already"
        manager = rank.kv_cache_manager
        (blocks,) = manager.get_blocks(request.request_id).blocks
        manager.block_pool.touch(blocks)
        self._held[request.request_id] = HeldKv(
            rank=number,
            pool=manager.block_pool,
            blocks=blocks,
            tokens=request.num_computed_tokens,
        )

    def to_send(self, request: Request) -> HeldKv | None:
        """What is held for a request and not on its way yet."""
        held = self._held.get(request.request_id)
        return None if held is None or held.on_way else held

    def may_go(self, held: HeldKv) -> bool:
        """Whether it may be on its way."""
        return self._in_flight.may_go(held.rank, held.tokens)

    def begin(self, held: HeldKv) -> None:
        """Note that it is on its way."""
        held.on_way = True
        self._in_flight.begin(held.rank, held.tokens)

    def release(self, request_id: str) -> None:
        """Free a request's blocks, if any are held."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held.pool.free_blocks(reversed(held.blocks))
            if held.on_way:
                self._in_flight.end(held.rank, held.tokens)

    def lose(self, rank: int) -> None:
        """Free all blocks of a rank that has lost them: their requests are computed again."""
        for name in [name for name, held in self._held.items() if held.rank == rank]:
            self.release(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunTransfers(KVConnectorMetadata):
    """Transfers that begin with a rank's decision."""

    transfers: tuple[KvMove, ...]


class SchedulerConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side of a rank's connector; no worker has one, as the engine moves the KV."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._begun: list[KvMove] = []

    @abstractmethod
    def brings_kv(self, request: Request) -> bool:
        """Whether all tokens of a waiting request but one are held elsewhere."""

    def came_tokens(self, request: Request) -> int:
        """Tokens of a request that is new here whose KV has come before it."""
        del request
        return 0

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> BegunTransfers:
        """The transfers that begin with this decision."""
        del scheduler_output
        begun, self._begun = tuple(self._begun), []
        return BegunTransfers(transfers=begun)

    @abstractmethod
    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends: whether vLLM is to keep its blocks, and parameters for its response."""

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`; there is one group."""
        return self.request_finished(request, block_ids[0])

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Not called: chips are not vLLM workers."""
        raise AssertionError("there is no worker")

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Not called, as above."""
        raise AssertionError("there is no worker")

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Not called, as above."""
        raise AssertionError("there is no worker")

    def wait_for_save(self) -> None:
        """Not called, as above."""
        raise AssertionError("there is no worker")


class RankKvConnector(SchedulerConnector):
    """Of a rank whose requests come with their KV from others; `join` comes before the first."""

    def join(self, number: int, kv: PromptKv) -> None:
        """Serve rank `number` of an engine whose ranks share `kv`."""
        self._number = number
        self._kv = kv

    def brings_kv(self, request: Request) -> bool:
        """Whether all tokens of a waiting request but one are held elsewhere."""
        return self._kv.to_send(request) is not None

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that another rank holds beyond this one's own prefix hit; None: not now."""
        held = self._kv.to_send(request)
        if held is not None and not self._kv.may_go(held):
            return None, False
        tokens = 0 if held is None else max(0, held.tokens - num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(
        self, request: Request, blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Begin a transfer into `blocks`; without tokens the request needs what is held no more."""
        held = self._kv.to_send(request)
        if held is None:
            return
        if not num_external_tokens:
            self._kv.release(request.request_id)
            return
        block_tokens = self._vllm_config.cache_config.block_size
        first = (held.tokens - num_external_tokens) // block_tokens
        (to_blocks,) = blocks.get_block_ids()
        from_blocks = [block.block_id for block in held.blocks]
        self._kv.begin(held)
        self._begun.append(
            KvTransfer(
                request_id=request.request_id,
                from_rank=held.rank,
                to_rank=self._number,
                from_blocks=from_blocks[first:],
                to_blocks=to_blocks[first : len(from_blocks)],
                tokens=num_external_tokens,
            )
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Free what was held for transfers that have ended, well or not."""
        for request_id in connector_output.finished_recving or ():
            self._kv.release(request_id)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Free what is held elsewhere for a request that ends before its transfer began."""
        del block_ids
        held = self._kv.to_send(request)
        if held is not None and held.rank != self._number:
            self._kv.release(request.request_id)
        return False, None


def brings_kv(rank: Scheduler, request: Request) -> bool:
    """Whether a request that waits on `rank` can load its KV from another."""
    return isinstance(rank.connector, SchedulerConnector) and rank.connector.brings_kv(request)
