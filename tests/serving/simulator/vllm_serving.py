"""Serves traffic in virtual time: vLLM's schedulers decide each step, the cost model times it.

No chips run, tokens are synthetic, and the host takes no time, so a run depends on the emulated
machine alone and repeats exactly. The clock counts whole ns; requests wait for the end of a step.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.simulator.needed_cache import blocks_in_use_max
from serving.traffic.engine_limits import EngineLimits
from serving.traffic.serving_run import Ending, ServingRun, missed_by
from tests.serving.plugin.engine_config import block_hasher
from tests.serving.simulator.virtual_engine_config import virtual_engine_config, virtual_kv_pool

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOPE_STEPS = 32
"""Steps between two checks of whether a level can still be met."""

EMPTY_STEPS_MAX = 3
"""Consecutive steps without a token after which nothing would ever change."""

_OUTPUT_TOKEN = 7
_PROMPT_TOKEN = 8  # and the number of the request: no two prompts share a block
_NAMED_TOKEN = 1_000_000  # and the name of a block


def serve_in_virtual_time(
    traffic: Traffic,
    cost_model: StepCostModel,
    limits: EngineLimits,
    *,
    levels: Sequence[Bound] = (),
    among: Bools | None = None,
    until_s: float = float("inf"),
    on_step: StepWatcher | None = None,
) -> ServingRun:
    """Serve `traffic` until all requests, or those in the mask `among` [requests], are complete.

    Ends earlier when these are certain to miss one of `levels`, which change nothing else, or at
    `until_s`; the result says which. `on_step` gets every step.

    Every request has to fit in the context and a rank's KV. Raises ConfigError for an unknown
    policy.
    """
    max_model_len = limits.max_model_len or cost_model.model.max_context_tokens
    config = virtual_engine_config(
        cost_model.partition,
        limits,
        max_model_len=max_model_len,
        kv_blocks=min(limits.kv_blocks_per_rank, max(2, blocks_in_use_max(traffic, limits))),
    )
    scheduler = LockstepScheduler(
        vllm_config=config,
        kv_cache_config=virtual_kv_pool(config),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_tokens,
        hash_block_size=limits.block_tokens,
    )
    judged = np.ones(len(traffic), dtype=np.bool_) if among is None else among
    serving = _VirtualServing(traffic, judged, cost_model, scheduler, on_step)
    try:
        ending = serving.serve(levels, until_ns=until_s * NS_PER_S)
    finally:
        scheduler.shutdown()
    return serving.result(ending)


class _VirtualServing:
    """One run, until the `judged` requests, [requests], end."""

    def __init__(
        self,
        traffic: Traffic,
        judged: Bools,
        cost_model: StepCostModel,
        scheduler: LockstepScheduler,
        on_step: StepWatcher | None,
    ) -> None:
        requests = len(traffic)
        self._traffic = traffic
        self._cost_model = cost_model
        self._scheduler = scheduler
        self._block_hasher = block_hasher(scheduler.ranks[0].block_size)
        self._on_step = on_step
        self._arrival_ns: list[int] = np.rint(traffic.arrival_s * NS_PER_S).astype(int).tolist()
        self._coming = 0  # number of the next request to arrive
        self._now_ns = 0
        self._first_token_s = np.full(requests, np.nan)
        self._last_token_s = np.full(requests, np.nan)
        self._tokens_left = traffic.output_tokens.copy()
        self._judged = judged
        self._judged_left = int(judged.sum())
        self._living: dict[int, Request] = {}
        self._given: list[Int64s] = []  # by step, the requests that got a token
        self._step_end_ns: list[int] = []
        self._busy_ns = 0
        self._idle_ns = 0
        self._step_joules = 0.0
        self._preemptions = 0
        self._kv_blocks_used_max = 0
        self._empty_steps = 0

    def serve(self, levels: Sequence[Bound], *, until_ns: float) -> Ending:
        """Step until the end; levels concern judged requests."""
        while self._judged_left:
            begin_ns = self._now_ns
            if not self._living:
                begin_ns = max(begin_ns, self._arrival_ns[self._coming])
            if begin_ns >= until_ns:
                return Ending.TIME_UP
            self._idle_ns += begin_ns - self._now_ns
            self._now_ns = begin_ns
            self._admit()
            self._step()
            if len(self._step_end_ns) % HOPE_STEPS == 0 and self._is_hopeless(levels):
                return Ending.HOPELESS
        return Ending.JUDGED if self._tokens_left.any() else Ending.SERVED

    def _admit(self) -> None:
        """Hand arrived requests to the scheduler."""
        while self._coming < len(self._arrival_ns) and (
            self._arrival_ns[self._coming] <= self._now_ns
        ):
            number, traffic = self._coming, self._traffic
            request = Request(
                str(number),
                _prompt(traffic, number),
                SamplingParams(max_tokens=int(traffic.output_tokens[number]), ignore_eos=True),
                None,
                arrival_time=self._arrival_ns[number] / NS_PER_S,
                priority=0 if traffic.priority is None else int(traffic.priority[number]),
                block_hasher=self._block_hasher,
            )
            self._scheduler.add_request(request)
            self._living[number] = request
            self._coming += 1

    def _step(self) -> None:
        """Schedule one lockstep, advance the clock, and give out its tokens."""
        output = self._scheduler.schedule()
        batch, given = self._decided(output)
        if not len(batch.rank):
            self._empty_steps += 1
            assert self._empty_steps < EMPTY_STEPS_MAX, "requests wait and no rank takes any"
        else:
            self._empty_steps = 0
            cost = self._cost_model.cost(batch)
            if self._on_step is not None:
                self._on_step(cost, batch, begin_ns=self._now_ns, queues=output.state.rank_states)
            self._now_ns += cost.duration_ns
            self._busy_ns += cost.duration_ns
            self._step_joules += cost.chip_joules
            self._record(given)
        used = max(rank.kv_blocks_used for rank in output.state.rank_states)
        self._kv_blocks_used_max = max(self._kv_blocks_used_max, used)
        self._scheduler.update_from_output(output, _synthetic_tokens(output, given))
        for number in given[self._tokens_left[given] == 0].tolist():
            request = self._living.pop(number)
            assert request.is_finished(), "the scheduler and this account agree on the end"
            self._preemptions += request.num_preemptions
            self._judged_left -= int(self._judged[number])

    def _decided(self, output: LockstepOutput) -> tuple[StepBatch, Int64s]:
        """The batch of a decision, and its requests that get a token, [tokens]."""
        ranks = len(self._scheduler.ranks)
        rows: list[tuple[int, int, int]] = []  # rank, new tokens, context tokens
        given: list[int] = []
        logit_rows = np.zeros(ranks, dtype=np.int64)
        for number, (rank, part) in enumerate(
            zip(self._scheduler.ranks, output.by_rank, strict=True)
        ):
            before = len(given)
            for name, new_tokens in part.num_scheduled_tokens.items():
                request = rank.requests[name]
                # vLLM counts what it has just scheduled as computed.
                rows.append((number, new_tokens, request.num_computed_tokens - new_tokens))
                if not request.is_prefill_chunk:
                    given.append(int(name))
            logit_rows[number] = len(given) - before
        rank_of_row, new, context = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        batch = StepBatch(
            ranks=ranks,
            rank=rank_of_row,
            new_tokens=new,
            context_tokens=context,
            logit_rows=logit_rows,
        )
        return batch, np.array(given, dtype=np.int64)

    def _record(self, given: Int64s) -> None:
        now_s = self._now_ns / NS_PER_S
        self._step_end_ns.append(self._now_ns)
        self._given.append(given)
        self._first_token_s[given[np.isnan(self._first_token_s[given])]] = now_s
        self._tokens_left[given] -= 1
        self._last_token_s[given[self._tokens_left[given] == 0]] = now_s

    def _is_hopeless(self, levels: Sequence[Bound]) -> bool:
        """Whether more requests have missed a level than it allows."""
        requests = int(self._judged.sum())
        for level in levels:
            missed = missed_by(
                level,
                self._traffic.output_tokens,
                arrival_s=self._traffic.arrival_s,
                first_token_s=self._first_token_s,
                last_token_s=self._last_token_s,
                now_s=self._now_ns / NS_PER_S,
            )
            if requests and (requests - int(missed[self._judged].sum())) / requests < level.share:
                return True
        return False

    def result(self, ending: Ending) -> ServingRun:
        """The run so far."""
        idle_watts = self._cost_model.idle_chip_watts * self._cost_model.partition.chips
        return ServingRun(
            traffic=self._traffic,
            ending=ending,
            arrival_s=self._traffic.arrival_s,
            first_token_s=self._first_token_s,
            last_token_s=self._last_token_s,
            token_request=np.concatenate([np.zeros(0, dtype=np.int64), *self._given]),
            step_end_s=np.array(self._step_end_ns, dtype=np.int64) / NS_PER_S,
            step_tokens=np.array([len(given) for given in self._given], dtype=np.int64),
            busy_s=self._busy_ns / NS_PER_S,
            joules=self._step_joules + idle_watts * self._idle_ns / NS_PER_S,
            preemptions=self._preemptions
            + sum(request.num_preemptions for request in self._living.values()),
            kv_blocks_used_max=self._kv_blocks_used_max,
            empty_rank_steps=int(self._scheduler.empty_steps.sum()),
            failed=np.zeros(len(self._traffic), dtype=np.bool_),
        )


def _prompt(traffic: Traffic, number: int) -> list[int]:
    """Tokens of a prompt: by name where the traffic names its blocks, else of no other request."""
    named: list[int] = []
    if traffic.blocks is not None:
        which = slice(*traffic.blocks.begin[number : number + 2])
        lengths = np.diff(traffic.blocks.end_tokens[which], prepend=0)
        named = np.repeat(_NAMED_TOKEN + traffic.blocks.names[which], lengths).tolist()
    own = [_PROMPT_TOKEN + number] * int(traffic.prompt_tokens[number])
    return (named + own[len(named) :])[: len(own)]


def _synthetic_tokens(output: LockstepOutput, given: Int64s) -> ModelRunnerOutput:
    """One token for each request in `given`."""
    names = list(output.num_scheduled_tokens)
    gets_token = set(map(str, given.tolist()))
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=[[_OUTPUT_TOKEN] if name in gets_token else [] for name in names],
    )
