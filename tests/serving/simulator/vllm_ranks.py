"""vLLM's own schedulers under `LockstepScheduler`, and the compiled ones, on the same requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from serving.engine.scheduler_state import RankQueues
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import (
    SchedulerBounds,
    prefix_cache,
    request_records,
    scheduler_arrays,
)
from tests.serving.plugin.engine_config import block_hasher, engine_config, kv_pool

Row = tuple[int, int, int, int]
"""Rank, request, new tokens, context tokens."""

Decision = tuple[list[Row], tuple[RankQueues, ...]]

_REPLY_TOKEN = 1_000_000  # and the request's number: what replies say is of no other request


@dataclass(frozen=True, kw_only=True)
class AskedRequest:
    """Arrives before step `step`; ends early before step `abort_step`, if it still lives."""

    step: int
    prompt: tuple[int, ...]
    output_tokens: int
    priority: int = 0
    abort_step: int = -1


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """A configuration of both."""

    ranks: int
    kv_blocks: int
    bounds: SchedulerBounds
    policy: str = "none"
    caching: bool = False


def vllm_decisions(
    config: RankConfig, asked: Sequence[AskedRequest], steps: int
) -> Iterator[Decision]:
    """What vLLM's schedulers decide in each of `steps`, and how the ranks stand then."""
    scheduler = _vllm_scheduler(config)
    tokens_left = [each.output_tokens for each in asked]
    for step in range(steps):
        for number, each in enumerate(asked):
            if each.step == step:
                scheduler.add_request(_vllm_request(number, each, config))
        scheduler.finish_requests(
            [_name(number) for number, each in enumerate(asked) if each.abort_step == step],
            RequestStatus.FINISHED_ABORTED,
        )
        output = scheduler.schedule()
        rows: list[Row] = []
        given: list[int] = []
        for rank, (one, part) in enumerate(zip(scheduler.ranks, output.by_rank, strict=True)):
            for name, new in part.num_scheduled_tokens.items():
                request = one.requests[name]
                rows.append((rank, int(name), new, request.num_computed_tokens - new))
                if not request.is_prefill_chunk:
                    given.append(int(name))
        yield rows, output.state.rank_states
        for number in given:
            tokens_left[number] -= 1
        scheduler.update_from_output(output, _tokens(output, given))
    scheduler.shutdown()


def compiled_decisions(
    config: RankConfig, asked: Sequence[AskedRequest], steps: int
) -> Iterator[Decision]:
    """The same of the compiled schedulers."""
    priorities = np.array([each.priority for each in asked], dtype=np.int64)
    bounds = config.bounds
    level = np.unique(priorities, return_inverse=True)[1] if bounds.by_priority else None
    requests = request_records(
        arrival_ns=np.array([each.step for each in asked], dtype=np.int64),
        prompt_tokens=np.array([len(each.prompt) for each in asked], dtype=np.int64),
        output_tokens=np.array([each.output_tokens for each in asked], dtype=np.int64),
        block_tokens=bounds.block_tokens,
        level=level,
    )
    arrays = scheduler_arrays(
        requests, ranks=config.ranks, kv_blocks=config.kv_blocks, bounds=bounds
    )
    cache = None
    if config.caching:
        keys = _block_keys(asked, bounds.block_tokens)
        cache = prefix_cache(keys, arrays, bounds, config.kv_blocks)
    schedulers = LockstepSchedulers(arrays, bounds, parse_prefill_policy(config.policy), cache)
    coming = 0
    for step in range(steps):
        coming = schedulers.admit(coming, step)
        for number, each in enumerate(asked):
            if each.abort_step == step:
                schedulers.abort(number)
        batch = schedulers.schedule()
        request = arrays.rows["request"][: len(batch.rank)]
        columns = (batch.rank, request, batch.new_tokens, batch.context_tokens)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        yield rows, schedulers.queues
        schedulers.give_tokens(step)


def _name(number: int) -> str:
    return f"{number:06}"  # vLLM breaks ties of priority and arrival by name


def _vllm_scheduler(config: RankConfig) -> LockstepScheduler:
    bounds = config.bounds
    made = engine_config(
        chips=config.ranks,
        prefill_policy=config.policy,
        max_num_batched_tokens=bounds.step_tokens,
        max_num_seqs=bounds.seats,
        block_size=bounds.block_tokens,
        enable_prefix_caching=config.caching,
        scheduling_policy="priority" if bounds.by_priority else "fcfs",
        long_prefill_token_threshold=bounds.long_prefill_tokens,
    )
    return LockstepScheduler(
        vllm_config=made,
        kv_cache_config=kv_pool(made, config.kv_blocks),
        structured_output_manager=StructuredOutputManager(made),
        block_size=bounds.block_tokens,
        hash_block_size=bounds.block_tokens,
    )


def _vllm_request(number: int, asked: AskedRequest, config: RankConfig) -> Request:
    return Request(
        _name(number),
        list(asked.prompt),
        SamplingParams(max_tokens=asked.output_tokens, ignore_eos=True),
        None,
        arrival_time=float(asked.step),
        priority=asked.priority,
        block_hasher=block_hasher(config.bounds.block_tokens) if config.caching else None,
    )


def _tokens(output: LockstepOutput, given: list[int]) -> ModelRunnerOutput:
    names = list(output.num_scheduled_tokens)
    sampled = {_name(number): [_REPLY_TOKEN + number] for number in given}
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=[sampled.get(name, []) for name in names],
    )


def _block_keys(asked: Sequence[AskedRequest], block_tokens: int) -> "np.ndarray":
    """A number for each different content up to the end of each full block."""
    known: dict[tuple[int, ...], int] = {}
    keys = []
    for number, each in enumerate(asked):
        tokens = each.prompt + (_REPLY_TOKEN + number,) * each.output_tokens
        for end in range(block_tokens, len(tokens) + 1, block_tokens):
            keys.append(known.setdefault(tokens[:end], len(known)))
    return np.array(keys, dtype=np.int64)
