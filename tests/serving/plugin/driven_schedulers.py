"""vLLM's schedulers in lockstep and the fast one, driven by the same turns; see `Seen`."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from emulator.data import SMALL_MOE_DIR
from emulator.ultraserver.synthetic_tokens import SyntheticTokens
from serving.engine.step_report import StepReport
from serving.plugin.fast_decision import FastDecision
from serving.plugin.fast_scheduler import FastScheduler
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.plugin.translate import StillHeld, TimedOutput, model_runner_output, rank_step
from tests.serving.plugin.engine_config import block_hasher, engine_config, kv_pool

BLOCK_TOKENS = 16
CONTEXT_TOKENS = 256

Row = tuple[int, int, int]
"""Rank, new tokens, context tokens."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request; `follows` one whose prompt and reply so far go before its own prompt."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    follows: str | None = None
    priority: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FastTurn:
    """What comes before a step, while it is held, before its end, and with its report."""

    asked: tuple[Asked, ...] = ()
    aborted: tuple[str, ...] = ()
    asked_meanwhile: tuple[Asked, ...] = ()
    aborted_meanwhile: tuple[str, ...] = ()
    aborted_late: tuple[str, ...] = ()
    pause: PauseState | None = None
    reset: bool | None = None  # `reset_running_requests` of reset_prefix_cache
    news: dict[str, Any] = field(default_factory=dict)  # of the StepReport


@dataclass(frozen=True, kw_only=True)
class EngineShape:
    """Of both: `options` are vLLM's; requests come from `clients` by turns."""

    ranks: int
    kv_blocks: int
    policy: str
    options: dict[str, Any]
    log_stats: bool = True
    clients: int = 1


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A step's rows, state and outputs, and how many requests there are after it."""

    rows: list[Row]
    state: Any
    continues: bool
    abandoned: bool
    outputs: list[tuple[Any, ...]]
    stats: Any
    unfinished: int
    counts: tuple[int, int]


class Driven(ABC):
    """A scheduler and its clients."""

    def __init__(self, shape: EngineShape, engine: str) -> None:
        settings = {
            "chips": shape.ranks,
            "prefill_policy": shape.policy,
            "computes": False,
            "engine": engine,
        }
        self.config = engine_config(
            additional_config={"ultraserve": settings},
            block_size=BLOCK_TOKENS,
            max_model_len=CONTEXT_TOKENS,
            **shape.options,
        )
        self.ranks = shape.ranks
        self.clients = shape.clients
        self.scheduler: SchedulerInterface = self.scheduler_class(
            vllm_config=self.config,
            kv_cache_config=kv_pool(self.config, shape.kv_blocks),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=shape.log_stats,
        )
        self.texts: dict[str, list[int]] = {}
        self.steps = 0

    scheduler_class: type[Any]

    @abstractmethod
    def rows(self, decision: LockstepOutput) -> list[Row]:
        """What each request of a decision computes."""

    @abstractmethod
    def computed(self, decision: LockstepOutput, report: StepReport) -> ModelRunnerOutput:
        """The output of a step."""

    def ask(self, asked: Sequence[Asked]) -> None:
        for each in asked:
            before = self.texts.get(each.follows, []) if each.follows else []
            prompt = [*before, *each.prompt][: CONTEXT_TOKENS - 1]
            params = SamplingParams(
                max_tokens=each.max_tokens,
                temperature=0.0 if each.seed is None else 0.8,
                seed=each.seed,
                stop_token_ids=list(each.stop_token_ids),
            )
            params.update_from_generation_config({}, 2)
            self.texts[each.name] = list(prompt)
            self.scheduler.add_request(
                Request(
                    *(each.name, prompt, params, None),
                    client_index=len(self.texts) % self.clients,
                    arrival_time=float(len(self.texts)),
                    priority=each.priority,
                    block_hasher=(
                        block_hasher(BLOCK_TOKENS)
                        if self.config.cache_config.enable_prefix_caching
                        else None
                    ),
                )
            )

    def abort(self, names: Sequence[str]) -> None:
        for name in names:
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def take(self, turn: FastTurn) -> Seen:
        """One step."""
        self.abort(turn.aborted)
        self.ask(turn.asked)
        if turn.pause is not None:
            self.scheduler.set_pause_state(turn.pause)
        if turn.reset is not None:
            self.scheduler.reset_prefix_cache(reset_running_requests=turn.reset)
        decision = self.scheduler.schedule()
        assert isinstance(decision, LockstepOutput)
        rows, state = self.rows(decision), decision.state
        moved = sorted(state.moved, key=lambda each: each.name)  # in no order
        if rows and (turn.asked_meanwhile or turn.aborted_meanwhile):
            held = StillHeld(req_ids=[], req_id_to_index={})
            assert self.scheduler.update_from_output(decision, held) == {}
            self.abort(turn.aborted_meanwhile)
            self.ask(turn.asked_meanwhile)
            assert self.scheduler.has_requests()
            assert self.scheduler.schedule() is decision
        report = StepReport(
            begin_s=self.steps,
            end_s=self.steps + 1,
            epochs=None,
            weights=("first",) * self.ranks,
            **turn.news,
        )
        self.steps += 1
        done = self.computed(decision, report)
        self.abort(turn.aborted_late)
        told = self.scheduler.update_from_output(decision, done)
        stats = next((each.scheduler_stats for each in told.values()), None)
        if stats is not None:
            stats = replace(stats, kv_cache_usage=round(stats.kv_cache_usage, 9))
        return Seen(
            rows=rows,
            state=replace(state, moved=tuple(moved)),
            continues=decision.continues,
            abandoned=decision.abandoned,
            outputs=self._told(told),
            stats=stats,
            unfinished=self.scheduler.get_num_unfinished_requests(),
            counts=self.scheduler.get_request_counts(),
        )

    def _told(self, told: dict[int, EngineCoreOutputs]) -> list[tuple[Any, ...]]:
        assert all(part.timestamp == self.steps for part in told.values())
        seen = []
        parts = sorted(told.items())
        for client, each in [(client, each) for client, part in parts for each in part.outputs]:
            self.texts[each.request_id] += each.new_token_ids
            kinds = [event.type for event in each.events or []]
            # Of what had to leave a rank, vLLM's schedulers in lockstep stamp some events later.
            left = EngineCoreEventType.PREEMPTED in kinds or not each.new_token_ids
            times = [] if left else [event.timestamp for event in each.events or []]
            seen.append(
                (
                    *(each.request_id, each.new_token_ids, each.finish_reason, each.stop_reason),
                    client,
                    *(kinds, times, each.prefill_stats, each.kv_transfer_params),
                )
            )
        # Ends without a token are in no order.
        with_tokens = [each for each in seen if each[1]]
        return with_tokens + sorted(each for each in seen if not each[1])


class DrivenLockstep(Driven):
    """vLLM's schedulers, and what the executor does with their decisions."""

    scheduler_class = LockstepScheduler

    def __init__(self, shape: EngineShape) -> None:
        super().__init__(shape, "default")
        self._tokens = SyntheticTokens(SMALL_MOE_DIR, shape.ranks)
        self._finished: dict[int, list[str]] = defaultdict(list)

    def rows(self, decision: LockstepOutput) -> list[Row]:
        rows = []
        for rank, part in enumerate(decision.by_rank):
            contexts = {each.req_id: each.num_computed_tokens for each in part.scheduled_new_reqs}
            cached = part.scheduled_cached_reqs
            contexts |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            rows += [(rank, new, contexts[name]) for name, new in part.num_scheduled_tokens.items()]
        return rows

    def computed(self, decision: LockstepOutput, report: StepReport) -> ModelRunnerOutput:
        steps = []
        for rank, part in enumerate(decision.by_rank):
            self._finished[rank] += sorted(part.finished_req_ids)
            if part.total_num_scheduled_tokens and rank not in report.silent_ranks:
                finished = self._finished.pop(rank)
                steps.append(rank_step(rank, part, finished, 0, None))
        outputs = self._tokens.step(steps, {}).outputs
        self._tokens.forget(report.lost_ranks)
        return TimedOutput(**vars(model_runner_output(steps, outputs)), report=report)


class DrivenFast(Driven):
    """The compiled schedulers."""

    scheduler_class = FastScheduler

    def __init__(self, shape: EngineShape) -> None:
        super().__init__(shape, "fast")

    def rows(self, decision: LockstepOutput) -> list[Row]:
        assert isinstance(decision, FastDecision)
        batch = decision.batch
        columns = np.stack([batch.rank, batch.new_tokens, batch.context_tokens], axis=1)
        return [(rank, new, context) for rank, new, context in columns.tolist()]

    def computed(self, decision: LockstepOutput, report: StepReport) -> ModelRunnerOutput:
        del decision
        return TimedOutput(req_ids=[], req_id_to_index={}, report=report)
