"""An admission before vLLM's own schedulers, in virtual time.

The cost model gives each step's time; clients come at their times, after their last request, or
when told to. A request's course depends on the emulated machine alone and is reproducible: tokens
are synthetic, and the host takes no time.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.policy.admission.work import PRIORITY, WorkClass
from serving.traffic.engine_limits import EngineLimits
from tests.serving.simulator.virtual_engine_config import virtual_engine_config, virtual_kv_pool

_PROMPT_TOKEN, _OUTPUT_TOKEN = 5, 7  # any will do: nothing computes them


@dataclass(slots=True, kw_only=True)
class Call:
    """One request and its outcome; times are emulated seconds, None: never."""

    client: int
    prompt_tokens: int
    answer_tokens: int
    asked_tokens: int
    at_s: float
    work_class: WorkClass = WorkClass.INTERACTIVE
    first_token_s: float | None = None
    end_s: float | None = None
    refused: str | None = None
    made_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """From arrival to first token; infinite without one."""
        return float("inf") if self.first_token_s is None else self.first_token_s - self.at_s

    @property
    def tokens(self) -> int:
        """The work: tokens of prompt and answer."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The answer to a client that may not enter."""

    message: str
    retry_after_s: float


class Gate(Protocol):
    """Decides admissions, and observes requests."""

    def enter(self, call: Call) -> Refusal | None:
        """Admit `call` now, at `call.at_s`, or return why not."""

    def first_token(self, call: Call, now_s: float) -> None:
        """It has its first token."""

    def made(self, call: Call) -> None:
        """It has one more token."""

    def end(self, call: Call, now_s: float) -> None:
        """It has all its tokens."""


class Clients(Protocol):
    """Senders of requests."""

    def first(self) -> Iterable[Call]:
        """The requests that come in any case."""

    def ended(self, call: Call, now_s: float) -> Call | None:
        """The client's next request after an end."""

    def refused(self, call: Call, refusal: Refusal) -> Call | None:
        """The client's next request after a refusal."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """A partition's cost model and its schedulers' limits."""

    costs: StepCostModel
    limits: EngineLimits

    @property
    def ranks(self) -> int:
        return self.costs.partition.ranks

    def scheduler(self, context_tokens: int) -> LockstepScheduler:
        config = virtual_engine_config(
            self.costs.partition,
            self.limits,
            max_model_len=context_tokens,
            kv_blocks=self.limits.kv_blocks_per_rank,
        )
        # As `ultraserve serve` has it: interactive work goes before batch work.
        config.scheduler_config.policy = "priority"
        return LockstepScheduler(
            vllm_config=config,
            kv_cache_config=virtual_kv_pool(config),
            structured_output_manager=StructuredOutputManager(config),
            block_size=self.limits.block_tokens,
            hash_block_size=self.limits.block_tokens,
        )


@dataclass(slots=True)
class VirtualEngine:
    """One run: `calls` are all that came by `until_s`, in order."""

    engine: Engine
    gate: Gate
    clients: Clients
    context_tokens: int = 32_768
    calls: list[Call] = field(default_factory=list)
    now_s: float = 0.0
    steps: int = 0
    idle_s: float = 0.0
    _scheduler: LockstepScheduler = field(init=False)
    _ended: bool = False
    _coming: list[tuple[float, int, Call]] = field(default_factory=list)
    _living: dict[str, tuple[Call, Request]] = field(default_factory=dict)
    _entered: list[tuple[str, Call]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        self._scheduler = self.engine.scheduler(self.context_tokens)
        for call in self.clients.first():
            self.send(call)

    def send(self, call: Call) -> None:
        heapq.heappush(self._coming, (call.at_s, next(self._numbers), call))

    def clear(self) -> None:
        self._coming.clear()
        self._ended = True

    def run(self, until_s: float) -> None:
        """Serve until then; then only give admitted requests their first tokens."""
        while self._next_step(until_s):
            self._step(until_s)
        while any(call.first_token_s is None for call, _ in self._living.values()):
            self._step(until_s)
        self._scheduler.shutdown()

    def _next_step(self, until_s: float) -> bool:
        """Advance to the next step; whether there is one before `until_s`."""
        self._arrive(min(self.now_s, until_s))
        while not self._living and not self._entered:
            if not self._coming or self._coming[0][0] >= until_s:
                return False
            self.idle_s += self._coming[0][0] - self.now_s
            self.now_s = self._coming[0][0]
            self._arrive(self.now_s)
        return self.now_s < until_s

    def _arrive(self, by_s: float) -> None:
        """Pass arrivals by then to the gate; the engine gets them with its next step."""
        while self._coming and self._coming[0][0] <= by_s:
            call = heapq.heappop(self._coming)[-1]
            self.calls.append(call)
            refusal = self.gate.enter(call)
            if refusal is None:
                self._entered.append((str(len(self.calls)), call))
                continue
            call.refused = refusal.message
            again = self.clients.refused(call, refusal)
            if again is not None:
                self.send(again)

    def _step(self, until_s: float) -> None:
        for name, call in self._entered:
            request = Request(
                name,
                [_PROMPT_TOKEN] * call.prompt_tokens,
                SamplingParams(max_tokens=call.answer_tokens, ignore_eos=True),
                None,
                arrival_time=call.at_s,
                priority=PRIORITY[call.work_class],
            )
            self._living[name] = (call, request)
            self._scheduler.add_request(request)
        self._entered = []
        output = self._scheduler.schedule()
        batch, given = self._decided(output)
        end_s = self.now_s + self.engine.costs.cost(batch).duration_ns / NS_PER_S
        self._arrive(min(end_s, until_s))
        self.now_s = end_s
        self.steps += 1
        self._scheduler.update_from_output(output, _tokens(output, given))
        for name in given:
            self._made(name)

    def _made(self, name: str) -> None:
        call, request = self._living[name]
        if call.first_token_s is None:
            call.first_token_s = self.now_s
            self.gate.first_token(call, self.now_s)
        call.made_tokens += 1
        self.gate.made(call)
        if not request.is_finished():
            return
        del self._living[name]
        call.end_s = self.now_s
        self.gate.end(call, self.now_s)
        following = None if self._ended else self.clients.ended(call, self.now_s)
        if following is not None:
            self.send(following)

    def _decided(self, output: LockstepOutput) -> tuple[StepBatch, list[str]]:
        """The batch of a decision, and the requests that get a token by it."""
        rows: list[tuple[int, int, int]] = []  # rank, new tokens, context tokens
        given: list[str] = []
        logit_rows = np.zeros(self.engine.ranks, dtype=np.int64)
        for number, part in enumerate(output.by_rank):
            before = len(given)
            requests = self._scheduler.ranks[number].requests
            for name, new_tokens in part.num_scheduled_tokens.items():
                # vLLM counts what it has just scheduled as computed.
                context = requests[name].num_computed_tokens - new_tokens
                rows.append((number, new_tokens, context))
                if not requests[name].is_prefill_chunk:
                    given.append(name)
            logit_rows[number] = len(given) - before
        rank, new, context_tokens = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        batch = StepBatch(
            ranks=self.engine.ranks,
            rank=rank,
            new_tokens=new,
            context_tokens=context_tokens,
            logit_rows=logit_rows,
        )
        return batch, given


def _tokens(output: LockstepOutput, given: list[str]) -> ModelRunnerOutput:
    names, gets_token = list(output.num_scheduled_tokens), set(given)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=[[_OUTPUT_TOKEN] if name in gets_token else [] for name in names],
    )


def ttfts_s(calls: Iterable[Call]) -> NDArray[np.float64]:
    """TTFT of admitted requests, [requests]."""
    return np.array([call.ttft_s for call in calls if call.refused is None])
