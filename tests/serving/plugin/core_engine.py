"""What vLLM's EngineCore does with our scheduler and executor, on chips in this process."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from emulator.specs.step import RankStep
from emulator.ultraserver.lockstep import StepResult
from serving.plugin import executor as executor_module
from serving.plugin.executor import UltraServeExecutor
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.wire.control_call import (
    METHOD,
    ControlReply,
    ControlRequest,
    reply_from_json,
    to_json,
)
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool
from tests.serving.plugin.live_parts import started_tokens
from tests.serving.plugin.lockstep_workload import Arrival

BLOCKS = 64


def executor(
    speculative_config: Mapping[str, Any] | None = None,
    kv_transfer_config: KVTransferConfig | None = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> UltraServeExecutor:
    """An executor with `settings` of ours and other `arguments` of vLLM's EngineArgs."""
    config = engine_config(
        additional_config={"ultraserve": {"clock": "virtual"} | settings},
        speculative_config=speculative_config and dict(speculative_config),
        kv_transfer_config=kv_transfer_config,
        **arguments,
    )
    return UltraServeExecutor(config)


class Engine:
    """What vLLM's EngineCore does with a scheduler and an executor, in its order."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, chips: int, *, blocks: int = BLOCKS, **settings: Any
    ) -> None:
        self.heard: list[list[RankStep]] = []
        self.scheduler_stats: SchedulerStats | None = None  # of the last turn
        monkeypatch.setattr(executor_module, "start_tokens", self._start)
        self.executor = executor(chips=chips, **settings)
        config = self.executor.vllm_config
        self.scheduler = LockstepScheduler(
            vllm_config=config,
            kv_cache_config=kv_pool(config, blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.executor.initialize_from_config([kv_pool(config, blocks)])
        self.executor.compile_or_warm_up_model()
        self.heard.clear()

    def _start(self, *arguments: Any, **more: Any) -> Any:
        """The chips in this process, and somebody who listens to what they are told."""
        tokens = started_tokens(*arguments, **more)
        step = tokens.step

        def listened(steps: Sequence[RankStep], bitmasks: Any) -> StepResult:
            self.heard.append(list(steps))
            return step(steps, bitmasks)

        tokens.step = listened  # type: ignore[method-assign]
        return tokens

    def turn(self) -> tuple[SchedulerOutput, ModelRunnerOutput, list[EngineCoreOutput]]:
        decision = self.scheduler.schedule()
        result = self.executor.execute_model(decision, non_block=True).result()
        if result is None:
            grammar = self.scheduler.get_grammar_bitmask(decision)
            result = self.executor.sample_tokens(grammar)
        outputs = self.scheduler.update_from_output(decision, result)
        if (drafts := self.executor.take_draft_token_ids()) is not None:
            self.scheduler.update_draft_token_ids(drafts)
        self.scheduler_stats = next(
            (part.scheduler_stats for part in outputs.values() if part.scheduler_stats), None
        )
        return decision, result, [one for part in outputs.values() for one in part.outputs]

    def add(
        self,
        name: str,
        tokens: int,
        *,
        first: int = 50,
        max_tokens: int = 3,
        kv_transfer_params: Mapping[str, Any] | None = None,
    ) -> None:
        prompt = tuple(range(first, first + tokens))
        self.ask(Arrival(name=name, prompt=prompt, max_tokens=max_tokens), kv_transfer_params)

    def ask(self, arrival: Arrival, kv_transfer_params: Mapping[str, Any] | None = None) -> None:
        """Add a greedy request."""
        request = arrival.request()
        assert request.sampling_params is not None
        request.sampling_params.temperature = 0.0
        if kv_transfer_params is not None:
            request.kv_transfer_params = dict(kv_transfer_params)
            request.sampling_params.extra_args = {"kv_transfer_params": request.kv_transfer_params}
        self.scheduler.add_request(request)

    def control(self, request: ControlRequest) -> ControlReply:
        (reply,) = self.executor.collective_rpc(METHOD, args=(to_json(request),))
        return reply_from_json(reply)

    def serve(self, before_turn: Mapping[int, Callable[[], object]]) -> dict[str, list[int]]:
        """Run until no request is left, with things that happen before some turns."""
        tokens: dict[str, list[int]] = {}
        for number in itertools.count():
            before_turn.get(number, lambda: None)()
            if not self.scheduler.has_unfinished_requests():
                return tokens
            for output in self.turn()[2]:
                assert output.finish_reason != FinishReason.ERROR
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        raise AssertionError
