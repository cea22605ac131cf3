"""An engine at the seam of vLLM's AsyncLLM that makes tokens without computing.

It has vLLM's own output processor, requests and outputs; `generate` is as AsyncLLM's: requests are
added, outputs come from a queue, cancelled ones are aborted. `step` plays the engine's process: a
token for each sequence with a seat.
"""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from serving.plugin.stat_logger import EmulatedStatLogger
from tests.serving.plugin.core_request import core_request

CONTEXT_TOKENS = 4_096


class GeneratingEngine:
    """`seats` sequences run at once, lowest priority number first; a token is 7.

    With `stop_next` the first running one ends by itself with its next token. `stats` records each
    step, which takes a second.
    """

    def __init__(
        self, *, seats: int = 4, policy: str = "priority", stats: EmulatedStatLogger | None = None
    ) -> None:
        self.seats = seats
        self.output_processor = OutputProcessor(None, log_stats=stats is not None)
        self.logger_manager = SimpleNamespace(stat_loggers=[stats])
        self.now_s = 0.0
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(policy=policy),
            model_config=SimpleNamespace(max_model_len=CONTEXT_TOKENS),
        )
        self.priorities: list[int] = []
        self.waiting: dict[str, EngineCoreRequest] = {}
        self.running: dict[str, int] = {}  # tokens left
        self.aborted = 0
        self.stop_next = False
        self._names = 0

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """As vLLM's without limits of its own."""

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        if len(prompt["prompt_token_ids"]) >= CONTEXT_TOKENS:
            raise VLLMValidationError("prompt too long")
        names: list[str] = []
        queue = RequestOutputCollector(sampling_params.output_kind, request_id)
        self.priorities.append(priority)
        try:
            self._add(prompt, sampling_params, request_id, queue, names)
            await asyncio.sleep(0)  # vLLM sends it to the other process
            finished = False
            while not finished:
                output = queue.get_nowait() or await queue.get()
                finished = output.finished
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += len(names)
            self.output_processor.abort_requests(names, internal=True)
            for name in names:
                self.waiting.pop(name, None)
                self.running.pop(name, None)
            raise

    def _add(
        self,
        prompt: Any,
        params: SamplingParams,
        external: str,
        queue: RequestOutputCollector,
        names: list[str],
    ) -> None:
        whole = self._request(prompt, params, external)
        parent = ParentRequest(whole) if params.n > 1 else None
        for index in range(params.n):
            request = whole if parent is None else self._request(prompt, params, external)
            if parent is not None:
                name, child_params = parent.get_child_info(index)
                request.request_id, request.sampling_params = name, child_params
            self.output_processor.add_request(request, None, parent, index, queue)
            names.append(request.request_id)
            self.waiting[request.request_id] = request

    def _request(self, prompt: Any, params: SamplingParams, external: str) -> EngineCoreRequest:
        self._names += 1
        name = f"{external}-{self._names}"
        return core_request(name, prompt["prompt_token_ids"], params, external_req_id=external)

    def step(self) -> int:
        """One token for each sequence with a seat; returns their number."""
        for name in list(self.waiting):
            if len(self.running) < self.seats:
                params = self.waiting.pop(name).sampling_params
                assert params is not None
                self.running[name] = params.max_tokens or 1
        outputs = []
        for name in list(self.running):
            self.running[name] -= 1
            stops, self.stop_next = self.stop_next, False
            ends = stops or self.running[name] == 0
            reason = FinishReason.STOP if stops else FinishReason.LENGTH
            outputs.append(
                EngineCoreOutput(
                    request_id=name,
                    new_token_ids=[7],
                    finish_reason=reason if ends else None,
                )
            )
            if ends:
                del self.running[name]
        (stats,) = self.logger_manager.stat_loggers
        self.now_s += 1.0
        iteration = None if stats is None else IterationStats()
        self.output_processor.process_outputs(outputs, self.now_s, iteration)
        if stats is not None:
            stats.record(None, iteration)
        return len(outputs)


def params(
    max_tokens: int = 3, *, n: int = 1, kind: RequestOutputKind = RequestOutputKind.DELTA
) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n, detokenize=False, output_kind=kind)


def prompt(tokens: int = 10) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": [5] * tokens}
