"""vLLM's KV connector of a rank whose engine exchanges KV with others, by the NIXL connector's
parameters.

A request with `do_remote_decode` leaves its blocks held when it ends, until another engine has read
them or none did in time (`serving.engine.remote_kv`). With `push_to` each step's blocks go to that
engine too, as they are computed: a request that finds all of its prompt there starts with the next
decision, and does not wait for a load. One with `do_remote_prefill` gets blocks
and waits for what they are read from; if that fails, vLLM computes the prompt here.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm import envs
from vllm.v1.request import Request, RequestStatus

from emulator.specs.step import KvAwait, KvPull, KvPush, KvRelease, KvSource
from serving.engine.remote_kv.arrivals import KvArrival, kv_arrivals_of
from serving.engine.remote_kv.offers import KvOffer, kv_offers_of
from serving.plugin.kv_connector import RankKvConnector, SchedulerConnector, with_connector
from serving.plugin.kv_transfer_params import (
    NAME,
    asks_to_hold,
    held_elsewhere,
    is_name,
    prompt_digest,
    push_target,
)
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput

    from serving.plugin.kv_connector import BegunTransfers

logger = logging.getLogger(f"vllm.{__name__}")

_ENDED_WELL: Final = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


@dataclass(slots=True, kw_only=True)
class _PushedPrompt:
    """A prompt whose blocks go to another engine as they are computed; `blocks` have gone. It
    `has_begun` with the first of its steps, which may be shorter than a block.
    """

    request: Request
    target: KvSource
    prompt: bytes
    blocks: int = 0
    has_begun: bool = False


class EngineKvConnector(SchedulerConnector):
    """Of one rank; `join` comes before its first request."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        config = self._vllm_config
        self._offers = kv_offers_of(config.instance_id)
        self._arrivals = kv_arrivals_of(config.instance_id)
        self._pushed: dict[str, _PushedPrompt] = {}
        self._are_there: dict[str, KvArrival] = {}
        """By request, prompts that came here with the steps that computed them, when last asked."""
        self._tp = Settings.from_additional_config(config.additional_config).tp
        self._held: dict[str, list[KVCacheBlock]] = {}
        self._number = 0
        self._address = envs.VLLM_NIXL_SIDE_CHANNEL_HOST, envs.VLLM_NIXL_SIDE_CHANNEL_PORT

    def join(self, number: int) -> None:
        """Serve rank `number`."""
        self._number = number

    @property
    def holds_kv(self) -> bool:
        """Whether blocks of the rank are held for another engine."""
        return bool(self._held)

    def lose(self) -> None:
        """Free all that is held: the rank has lost it, and what was pushed to it."""
        for pushed in self._pushed.values():
            self._give_up(pushed)
        self._pushed.clear()
        self._arrivals.lose(self._number)
        for name in list(self._held):
            self._offers.lose(name)
            self._free(name)
        self._offers.take_ended(self._number)

    def brings_kv(self, request: Request) -> bool:
        """Whether the prompt of a waiting request is held by another engine."""
        return held_elsewhere(request) is not None

    def on_new_request(self, request: Request) -> None:
        """Ask another engine to hold the request's KV while it waits for room here; or note which
        one is to have the KV of its prompt.
        """
        target = push_target(request.kv_transfer_params, request.request_id)
        if target is not None and is_name(request.request_id):
            prompt = prompt_digest(request)
            self._pushed[request.request_id] = _PushedPrompt(
                request=request, target=target, prompt=prompt
            )
        remote = held_elsewhere(request)
        if remote is not None:
            self._begun.append(KvAwait(request_id=request.request_id, source=remote.source))

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens of the prompt that another engine holds beyond this rank's own prefix hit; not to
        be waited for where they came with the steps that computed them. The last is computed here.
        """
        remote = held_elsewhere(request)
        if remote is None:
            return 0, False
        tokens = max(0, request.num_prompt_tokens - num_computed_tokens)
        came = self._came(request, remote.source)
        if came is not None and self._arrivals.is_there(came):
            self._are_there[request.request_id] = came
            return max(0, tokens - 1), False
        self._are_there.pop(request.request_id, None)
        return tokens, tokens > 0

    def came_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that were pushed to the rank: all but the last, or none."""
        if not self._arrivals:
            return 0
        remote = held_elsewhere(request)
        came = None if remote is None else self._arrivals.find(remote.source, self._number)
        return 0 if came is None else request.num_prompt_tokens - 1

    def _came(self, request: Request, source: KvSource) -> KvArrival | None:
        """What was pushed here of a request's prompt, all of it."""
        came = self._arrivals.find(source, self._number)
        return came if came is not None and came.prompt == prompt_digest(request) else None

    def update_state_after_alloc(
        self, request: Request, blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Begin to read into `blocks`, or, without tokens, say that nothing is needed; once."""
        remote = held_elsewhere(request)
        if remote is None:
            return
        _forget(request)
        there = self._are_there.pop(request.request_id, None)  # the port may have dropped it since
        if not num_external_tokens:
            self._begun.append(KvRelease(request_id=request.request_id, source=remote.source))
            return
        block_tokens = self._vllm_config.cache_config.block_size
        came = there or self._came(request, remote.source)
        if came is not None:
            self._arrivals.take(remote.source, came, request.request_id)
        first = (request.num_prompt_tokens - num_external_tokens - bool(there)) // block_tokens
        (to_blocks,) = blocks.get_block_ids()
        self._begun.append(
            KvPull(
                request_id=request.request_id,
                to_rank=self._number,
                to_blocks=to_blocks[first : -(-request.num_prompt_tokens // block_tokens)],
                tokens=num_external_tokens,
                prompt_tokens=request.num_prompt_tokens,
                prompt=prompt_digest(request),
                source=remote.source,
                first_block=first,
                from_chips=remote.chips,
                is_there=there is not None,
            )
        )

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> "BegunTransfers":
        """The transfers that begin with this decision; frees blocks that no engine reads more."""
        if self._pushed:
            self._push_computed(scheduler_output)
        for name in self._offers.take_ended(self._number):
            self._free(name)
        return super().build_connector_meta(scheduler_output)

    def _push_computed(self, scheduler_output: "SchedulerOutput") -> None:
        """Push the blocks that the step of this decision fills, at the prompt's end the last."""
        block_tokens = self._vllm_config.cache_config.block_size
        for name, new_tokens in scheduler_output.num_scheduled_tokens.items():
            pushed = self._pushed.get(name)
            if pushed is None:
                continue
            request = pushed.request
            if not pushed.has_begun and request.num_computed_tokens:
                # The engine that decodes may have the same prefix: it asks for the rest.
                del self._pushed[name]
                continue
            pushed.has_begun = True
            tokens = request.num_prompt_tokens
            computed = request.num_computed_tokens + new_tokens
            is_last = computed >= tokens
            end = -(-tokens // block_tokens) if is_last else computed // block_tokens
            if end > pushed.blocks:
                self._push(pushed, end, is_last=is_last)
            if is_last:
                del self._pushed[name]

    def _give_up(self, pushed: _PushedPrompt) -> None:
        if pushed.blocks:
            self._push(pushed, pushed.blocks, is_last=False)  # of no blocks

    def _push(self, pushed: _PushedPrompt, end: int, *, is_last: bool) -> None:
        """Push a prompt's blocks from those that have gone to before `end`."""
        assert self._kv_cache_manager is not None
        block_tokens = self._vllm_config.cache_config.block_size
        first, tokens = pushed.blocks, pushed.request.num_prompt_tokens
        (ids,) = self._kv_cache_manager.get_block_ids(pushed.request.request_id)
        pushed.blocks = end
        self._begun.append(
            KvPush(
                target=pushed.target,
                rank=self._number,
                blocks=list(ids[first:end]),
                first_block=first,
                tokens=min(end * block_tokens, tokens) - first * block_tokens,
                prompt_tokens=tokens,
                prompt=pushed.prompt,
                is_last=is_last,
            )
        )

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Hold the prompt's blocks where another engine decodes, and say where they are; give up
        those of another engine that are not asked for yet.
        """
        params = request.kv_transfer_params
        remote = held_elsewhere(request)
        self._are_there.pop(request.request_id, None)
        pushed = self._pushed.pop(request.request_id, None)
        if pushed is not None:
            self._give_up(pushed)
        if remote is not None:
            _forget(request)
            self._begun.append(KvRelease(request_id=request.request_id, source=remote.source))
        if not asks_to_hold(params) or request.status not in _ENDED_WELL or not block_ids:
            return False, None
        if not is_name(request.request_id):
            logger.warning(
                "KV of request %.80r is not held for another engine: its id must have %s",
                request.request_id,
                NAME,
            )
            return False, None
        tokens = min(request.num_prompt_tokens, request.num_computed_tokens)
        block_tokens = self._vllm_config.cache_config.block_size
        count = -(-tokens // block_tokens)
        if not self._offers.has_room(count):
            logger.warning(
                "KV of request %s is not held for another engine: the host's memory for it is full",
                request.request_id,
            )
            return False, None
        assert self._kv_cache_manager is not None
        (blocks,) = self._kv_cache_manager.get_blocks(request.request_id).blocks
        held = list(blocks[:count])
        self._kv_cache_manager.block_pool.touch(held)
        self._held[request.request_id] = held
        ids = [block.block_id for block in held]
        self._offers.add(
            KvOffer(
                request_id=request.request_id,
                rank=self._number,
                blocks=ids,
                tokens=tokens,
                prompt=prompt_digest(request),
            )
        )
        host, port = self._address
        return False, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [ids],
            "remote_engine_id": self._vllm_config.kv_transfer_config.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": self._tp,
            "remote_num_tokens": tokens,
        }

    def _free(self, name: str) -> None:
        held = self._held.pop(name)
        assert self._kv_cache_manager is not None
        self._kv_cache_manager.block_pool.free_blocks(reversed(held))


def _forget(request: Request) -> None:
    """The request's KV is asked for once: what it computes again is its own."""
    assert request.kv_transfer_params is not None
    request.kv_transfer_params["do_remote_prefill"] = False


def with_connectors(vllm_config: "VllmConfig", prefill_ranks: int | str) -> "VllmConfig":
    """The config of the ranks' schedulers: their connectors lead to each other, or out, or none."""
    if prefill_ranks:
        return with_connector(vllm_config, RankKvConnector)
    if vllm_config.kv_transfer_config is not None:
        return with_connector(vllm_config, EngineKvConnector)
    return vllm_config
