"""vLLM's own schedulers under `LockstepScheduler`, and the compiled ones, on the same requests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from vllm.config import SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from serving.engine.scheduler_state import RankQueues
from serving.engine.step_report import StepReport
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.translate import TimedOutput
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import (
    Acceptance,
    SchedulerBounds,
    prefix_cache,
    request_records,
    scheduler_arrays,
)
from tests.serving.plugin.engine_config import block_hasher, engine_config, kv_pool

Row = tuple[int, int, int, int]
"""Rank, request, new tokens, context tokens."""

Decision = tuple[list[Row], tuple[RankQueues, ...], list[int], int]
"""Rows, queues; and after the step: requests that ended in error, and how many are held."""

_SEED = 7
_REPLY_TOKEN = 1_000_000  # and the request's number: what replies say is of no other request


@dataclass(frozen=True, kw_only=True)
class AskedRequest:
    """Arrives before step `step`; ends early before step `abort_step`, if it still lives.

    `deadline_step` is such a step too, for those that are aborted when their deadline is over.
    """

    step: int
    prompt: tuple[int, ...]
    output_tokens: int
    priority: int = 0
    abort_step: int = -1
    deadline_step: int = -1


@dataclass(frozen=True, kw_only=True)
class RankChange:
    """With step `step`, ranks `lost` are lost; `up` and `closed` are all ranks' from then on."""

    step: int
    up: tuple[bool, ...]
    closed: tuple[bool, ...]
    lost: tuple[int, ...] = ()
    renewed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """A configuration of both."""

    ranks: int
    kv_blocks: int
    bounds: SchedulerBounds
    policy: str = "none"
    caching: bool = False
    changes: tuple[RankChange, ...] = ()
    acceptance: tuple[float, ...] = ()
    """Rates of drafts; those of `bounds` are as many."""

    def change_of(self, step: int) -> RankChange | None:
        """That of a step, if any."""
        return next((each for each in self.changes if each.step == step), None)


def vllm_decisions(
    config: RankConfig, asked: Sequence[AskedRequest], steps: int
) -> Iterator[Decision]:
    """What vLLM's schedulers decide in each of `steps`, and how the ranks stand then."""
    scheduler = _vllm_scheduler(config)
    for step in range(steps):
        for number, each in enumerate(asked):
            if each.step == step:
                scheduler.add_request(_vllm_request(number, each, config))
        for number, each in enumerate(asked):
            if each.abort_step == step:
                scheduler.finish_requests(_name(number), RequestStatus.FINISHED_ABORTED)
        _abort_due(scheduler, asked, step)
        output = scheduler.schedule()
        change = config.change_of(step)
        silent = () if change is None else change.lost
        rows: list[Row] = []
        sampled: dict[int, int] = {}
        for rank, (one, part) in enumerate(zip(scheduler.ranks, output.by_rank, strict=True)):
            for name, new in part.num_scheduled_tokens.items():
                request = one.requests[name]
                rows.append((rank, int(name), new, request.num_computed_tokens - new))
                if rank not in silent:
                    drafts = part.scheduled_spec_decode_tokens.get(name, [])
                    right = _right_drafts(config, int(name), request.num_tokens, drafts)
                    sampled[int(name)] = 0 if request.is_prefill_chunk else 1 + right
        told = scheduler.update_from_output(output, _output(step, sampled, change))
        _draft(scheduler, output.by_rank, len(config.acceptance))
        ended = [
            int(each.request_id)
            for client in told.values()
            for each in client.outputs
            if each.finish_reason is FinishReason.ERROR
        ]
        yield rows, output.state.rank_states, sorted(ended), sum(scheduler.get_request_counts())
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
        deadline_ns=np.array([each.deadline_step for each in asked], dtype=np.int64),
    )
    arrays = scheduler_arrays(
        requests, ranks=config.ranks, kv_blocks=config.kv_blocks, bounds=bounds
    )
    cache = None
    if config.caching:
        keys = _block_keys(asked, bounds.block_tokens)
        cache = prefix_cache(keys, arrays, bounds, config.kv_blocks)
    acceptance = Acceptance(rates=np.array(config.acceptance), seed=_SEED)
    schedulers = LockstepSchedulers(
        arrays,
        bounds,
        parse_prefill_policy(config.policy),
        cache,
        acceptance if config.acceptance else None,
    )
    coming = 0
    for step in range(steps):
        coming = schedulers.admit(coming, step)
        for number, each in enumerate(asked):
            if each.abort_step == step:
                schedulers.abort(number)
        schedulers.abort_due(step)
        batch = schedulers.schedule(now_ns=0)
        decided = arrays.rows[: len(batch.rank)]
        columns = (decided[field].tolist() for field in ("rank", "request", "new", "context"))
        rows = list(zip(*columns, strict=True))
        queues = schedulers.queues
        change = config.change_of(step)
        if change is None:
            schedulers.give_tokens(step)
            ended = schedulers.move()
        else:
            schedulers.give_tokens(step, silent=change.lost)
            schedulers.set_ranks(np.array(change.up), np.array(change.closed))
            ended = schedulers.move(change.lost, change.renewed)
        yield rows, queues, sorted(ended), schedulers.requests


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
        max_model_len=min(bounds.context_tokens, 512),
    )
    if bounds.speculative_tokens:
        method = "draft_model" if bounds.draft_slots else "eagle"
        made.speculative_config = _speculation(made, bounds.speculative_tokens, method)
    return LockstepScheduler(
        vllm_config=made,
        kv_cache_config=kv_pool(made, config.kv_blocks),
        structured_output_manager=StructuredOutputManager(made),
        block_size=bounds.block_tokens,
        hash_block_size=bounds.block_tokens,
    )


def _speculation(config: VllmConfig, draft_tokens: int, method: str) -> SpeculativeConfig:
    """One that needs no draft model, under another's name: schedulers ask for no more."""
    made = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=draft_tokens,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )
    made.method = method
    return made


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


def _abort_due(scheduler: LockstepScheduler, asked: Sequence[AskedRequest], step: int) -> None:
    """End those whose deadline is over, in the order in which ranks hold them."""
    held = [name for rank in scheduler.ranks for name in map(_id, [*rank.running, *rank.waiting])]
    held += [_name(number) for number in range(len(asked)) if _name(number) not in held]
    for name in held:
        each = asked[int(name)]
        if each.step <= step and 0 <= each.deadline_step <= step:
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def _id(request: Request) -> str:
    return str(request.request_id)


def _right_drafts(config: RankConfig, number: int, position: int, drafts: Sequence[int]) -> int:
    """The first drafts whose draws keep to their rates; padding, of -1, is never right."""
    right = 0
    while (
        right < len(drafts)
        and drafts[right] != -1
        and draw_of(_SEED, number, position + right) < config.acceptance[right]
    ):
        right += 1
    return right


def draw_of(seed: int, request: int, position: int) -> float:
    """SplitMix64's finalizer of the three, spread, as a share."""
    mixed = (
        seed * 0xD1342543DE82EF95 + request * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9
    ) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53


def _draft(
    scheduler: LockstepScheduler, by_rank: Sequence[SchedulerOutput], draft_tokens: int
) -> None:
    """Give each request of a step its next drafts, as the engine does."""
    if not draft_tokens:
        return
    for rank, part in zip(scheduler.ranks, by_rank, strict=True):
        names = list(part.num_scheduled_tokens)
        rank.update_draft_token_ids(DraftTokenIds(names, [[1] * draft_tokens for _ in names]))


def _output(step: int, sampled: Mapping[int, int], change: RankChange | None) -> ModelRunnerOutput:
    """Of a step: how many tokens each request has that a rank answers for."""
    report = None
    if change is not None:
        report = StepReport(
            begin_s=step,
            end_s=step + 1,
            epochs=None,
            lost_ranks=change.lost,
            ranks_up=change.up,
            closed_ranks=tuple(np.flatnonzero(change.closed).tolist()),
            renewed_ranks=change.renewed,
        )
    return TimedOutput(
        req_ids=[_name(number) for number in sampled],
        req_id_to_index={_name(number): row for row, number in enumerate(sampled)},
        sampled_token_ids=[[_REPLY_TOKEN + number] * tokens for number, tokens in sampled.items()],
        report=report,
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
