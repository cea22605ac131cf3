"""vLLM's executor on a fleet of emulated chips: computes a step and holds it to its emulated end.

`execute_model` keeps the decision; `sample_tokens` computes it, with the grammar's bitmask.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import psutil
import torch
from vllm.logger import init_logger
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

from emulator.fleet import Fleet
from emulator.specs.step import RankOutput, RankStep
from emulator.ultraserver.synthetic_tokens import SyntheticTokens
from serving.engine.calibration import (
    PoolLimits,
    first_dilation,
    host_ratios,
)
from serving.engine.engine_time import make_clock
from serving.engine.live_engine import LiveEngine
from serving.engine.step_report import StepReport
from serving.engine.token_source import start_tokens
from serving.engine.wake_request import wake_request_of
from serving.plugin.engine_shutdown import HEED_SIGNALS, LEAVE_SIGNALS
from serving.plugin.kv_exchange import start_exchange
from serving.plugin.kv_transfer_params import has_unseen_token
from serving.plugin.merge import LockstepOutput
from serving.plugin.platform import deployment_of
from serving.plugin.translate import (
    StillHeld,
    TimedOutput,
    grammar_bitmask,
    model_runner_output,
    rank_step,
)
from serving.process.engine_signals import EngineSignals, relay_signals
from serving.process.parent_death_watchdog import end_with_parent, in_engine_process, kill_within
from serving.wire.control_call import METHOD as CONTROL_METHOD
from serving.wire.engine_status import StatusWriter, status_path
from serving.wire.machine_state import HostRatio

# Below "vllm", where vLLM has configured handlers; a name of our own would print nothing.
logger = init_logger(f"vllm.{__name__}")

_HOST_BLOCKS_MAX = 2_000_000
"""vLLM keeps an object for each KV block of each rank: about 0.5 GB for this many."""

_HOST_POOL_SHARE = 0.5
"""Assumed: share of the memory that chips and weights leave on the host, which the KV of all ranks
may fill. With prefix caching vLLM writes to every block in time, and the chips' arrays hold the
weights' own KV."""

_TOTALS_EVERY_WALL_S = 0.25
"""Greatest age of the totals that a server without our gateway shows at a step."""

_END_WALL_S = 5.0
"""Time for an engine that cannot go on to notify the server's process and to end."""

_REST = ("sleep", "wake_up", "discard")
"""vLLM's sleep and wake calls to workers, by the live engine's names."""

_TORCH_DTYPES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}


def _done(result: Any) -> Future[Any]:
    """A finished result for a call that asked not to wait."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class NoWorker:
    """Worker class for vLLM's config; chips are not vLLM workers."""


class UltraServeExecutor(Executor):
    """One engine on one partition."""

    uses_ray = False
    supports_pp = False

    def _init_executor(self) -> None:
        end_with_parent()  # if nothing has called `register` in this process or its parent
        if in_engine_process():
            relay_signals()
        self.deployment = deployment_of(self.vllm_config)
        self.machine = self.deployment.machine(self.cache_config.gpu_memory_utilization)
        self._seed = self.model_config.seed or 0
        self._tokens: Fleet | SyntheticTokens | None = None
        self._engine: LiveEngine | None = None
        self._remote_kv = start_exchange(self.vllm_config, self.deployment)
        self._status: StatusWriter | None = None
        self._totals_s = -math.inf
        self._pending: LockstepOutput | None = None
        self._under_way: Sequence[RankStep] | None = None
        self._drafts: dict[str, list[int]] = {}
        self._finished: dict[int, list[str]] = {}
        self._unseen: set[str] = set()
        self._signals = EngineSignals()
        self._failed: Callable[[], None] = lambda: None

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """The timed model's KV as one full-attention group."""
        model = self.deployment.time_model
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.kv_declared_heads,
            head_size=model.kv_declared_head_size,
            dtype=_TORCH_DTYPES[model.kv_bytes_per_element],
        )
        return [{f"layers.{layer}.attention": spec for layer in range(model.layers)}]

    def determine_available_memory(self) -> list[int]:
        """HBM of a rank left to KV, in bytes of one copy of its tokens."""
        per_token = self.deployment.time_model.kv_bytes_per_token
        tokens, host_tokens = self.machine.kv_tokens_per_rank, self._host_pool_tokens()
        if host_tokens < tokens:
            logger.warning(
                "KV pool cut to %d tokens a rank, a share of %.2f: what this host can hold",
                host_tokens,
                host_tokens / tokens,
            )
        return [min(tokens, host_tokens) * per_token]

    def _host_pool_tokens(self) -> int:
        block_tokens: int = self.cache_config.block_size
        ranks = self.deployment.partition.ranks
        blocks = _HOST_BLOCKS_MAX // ranks
        if self.deployment.settings.computes:
            left_bytes = psutil.virtual_memory().available - self.deployment.host_need.total_bytes
            host_bytes = _HOST_POOL_SHARE * max(left_bytes, 0) / ranks
            per_block = self.deployment.host_kv_bytes_per_token * block_tokens
            blocks = min(blocks, int(host_bytes / per_block))
        # A rank holds one whole context, whatever the host has: memory is taken as it is written.
        context_tokens: int = self.model_config.max_model_len
        whole_context = -(-context_tokens // block_tokens) + 1
        return max(blocks, whole_context) * block_tokens

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Any; the chips lay out their blocks."""
        return [["NHD"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """Ignore vLLM's choice."""

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig]) -> None:
        """Start the chips with vLLM's pool."""
        (config,) = kv_cache_configs
        self._kv_blocks = config.num_blocks
        self.machine.take_kv(config.num_blocks * self.cache_config.block_size)
        started = time.perf_counter()
        self._tokens = tokens = start_tokens(
            self.deployment,
            self.machine,
            kv_blocks=config.num_blocks,
            block_tokens=self.cache_config.block_size,
        )
        logger.info(
            "%d emulated chips (%s) ready in %.1f s, %d KV blocks of %d tokens a rank",
            self.deployment.partition.chips,
            self.deployment.weights_name,
            time.perf_counter() - started,
            config.num_blocks,
            self.cache_config.block_size,
        )
        if isinstance(tokens, Fleet):
            tokens.watch(self._fail)

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback`, from any thread, when the engine cannot go on."""
        self._failed = callback

    def _fail(self, daemon: str) -> None:
        """End the engine: lost chips could not be replaced."""
        logger.error("Ray's %s has ended, and the engine ends: no chip can be started", daemon)
        kill_within(_END_WALL_S)  # a step that waits for its chips does not hear of it
        self._failed()

    def compile_or_warm_up_model(self) -> None:
        """Warm the chips up and set the clock; nothing is compiled."""
        tokens = self._tokens
        assert tokens is not None, "the chips are not started"
        setting = self.deployment.settings.clock
        # Only `auto` asks what the host can do; the chips' first step is then a request's.
        ratios = self._host_ratios(tokens) if setting == "auto" else ()
        clock = make_clock(setting, first_dilation(ratios) if ratios else 1.0)
        self._engine = LiveEngine(
            self.deployment,
            self.machine,
            tokens,
            clock,
            kv_blocks=self._kv_blocks,
            host_ratios=ratios,
            wake=wake_request_of(self.vllm_config.instance_id),
            remote_kv=self._remote_kv,
        )
        self._status = StatusWriter(status_path(self.vllm_config.instance_id))
        self._publish_status()
        for each in ratios:
            logger.info("clock auto: %s", each.words)
        logger.info("clock %s: %g wall seconds per emulated second", setting, clock.dilation)

    def _host_ratios(self, tokens: Fleet | SyntheticTokens) -> tuple[HostRatio, ...]:
        return host_ratios(
            lambda steps, bitmasks: tokens.step(steps, bitmasks).outputs,
            self.machine.cost_model,
            ranks=self.deployment.partition.ranks,
            limits=PoolLimits(
                block_tokens=self.cache_config.block_size,
                kv_blocks=self._kv_blocks,
                max_model_len=self.model_config.max_model_len,
                max_batched_tokens=self.scheduler_config.max_num_batched_tokens,
                max_requests=self.scheduler_config.max_num_seqs,
            ),
            expected_requests=self.deployment.settings.expect_concurrency,
        )

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Keep the decision for `sample_tokens`; ends an empty step, goes on with one under way."""
        assert isinstance(scheduler_output, LockstepOutput)
        result: ModelRunnerOutput | None = None
        if self._under_way is not None:
            self.live_engine().hear_meanwhile(scheduler_output.state)
            done = self.live_engine().go_on(abandoned=scheduler_output.abandoned)
            result = self._outcome(self._under_way, done)
            return result if not non_block else _done(result)
        if self._engine is not None:
            self._engine.hear(scheduler_output.state)
        self._note_finished(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens:
            self._pending = scheduler_output
        else:
            result = self._idle_output(scheduler_output)
        return result if not non_block else _done(result)

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        """Compute the kept step on the chips; returns its tokens at its emulated end."""
        pending, self._pending = self._pending, None
        assert pending is not None, "sample_tokens without execute_model"
        result = self._run(pending, grammar_output)
        return result if not non_block else _done(result)

    def _run(self, output: LockstepOutput, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        steps = self._rank_steps(output, grammar)
        bitmasks = {
            step.rank: mask
            for step in steps
            if (mask := grammar_bitmask(step, grammar)) is not None
        }
        done = self.live_engine().begin(steps, bitmasks, continues=output.continues)
        return self._outcome(steps, done)

    def _outcome(
        self,
        steps: Sequence[RankStep],
        done: tuple[dict[int, RankOutput], StepReport] | None,
    ) -> ModelRunnerOutput:
        """The step's outcome for the scheduler; StillHeld while it is under way."""
        if done is None:
            self._under_way = steps
            return StillHeld(req_ids=[], req_id_to_index={})
        self._under_way = None
        outputs, report = done
        self._drafts = {
            name: guesses for output in outputs.values() for name, guesses in output.drafts.items()
        }
        self._publish_status()
        return TimedOutput(**vars(model_runner_output(steps, outputs)), report=report)

    def _rank_steps(self, output: LockstepOutput, grammar: GrammarOutput | None) -> list[RankStep]:
        """Steps of the ranks with work; finished ids wait for their rank."""
        steps = []
        for rank, decision in enumerate(output.by_rank):
            if decision.total_num_scheduled_tokens:
                finished = self._finished.pop(rank, [])
                new = [] if self._remote_kv is None else decision.scheduled_new_reqs
                self._unseen.update(each.req_id for each in new if has_unseen_token(each))
                step = rank_step(rank, decision, finished, self._seed, grammar, self._unseen)
                steps.append(step)
        return steps

    def _note_finished(self, output: LockstepOutput) -> None:
        for rank, decision in enumerate(output.by_rank):
            if decision.finished_req_ids:
                self._finished.setdefault(rank, []).extend(sorted(decision.finished_req_ids))
                self._unseen -= decision.finished_req_ids

    def _idle_output(self, output: LockstepOutput) -> ModelRunnerOutput:
        if self._engine is None:
            return EMPTY_MODEL_RUNNER_OUTPUT
        report = self._engine.idle_report(continues=output.continues)
        self._publish_status()
        return TimedOutput(req_ids=[], req_id_to_index={}, report=report)

    def _publish_status(self) -> None:
        """Publish clock and ranks to the API process before it has the step's tokens."""
        if self._status is None:
            return
        engine, totals, now_s = self.live_engine(), None, time.monotonic()
        if now_s - self._totals_s >= _TOTALS_EVERY_WALL_S:
            totals, self._totals_s = engine.telemetry(), now_s
        self._status.write(engine.status(), totals)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Answer vLLM's control calls; raises NotImplementedError for an unknown method."""
        del timeout
        answers: dict[str, Any] = {
            "get_supported_tasks": ("generate",),
            "update_max_model_len": None,
            "reset_mm_cache": None,
            "reset_encoder_cache": None,
            "synchronize_device": None,
            "supports_draft_weight_updates": False,
            "get_kv_connector_handshake_metadata": None,  # the engine's port has its own
            "get_model_inspection": f"{self.deployment.weights_name} on emulated chips",
        }
        if method == CONTROL_METHOD:
            result: list[Any] = [self.live_engine().control(*args)]
        elif method in _REST:
            getattr(self.live_engine(), str(method))(*args, **(kwargs or {}))
            result = [None]
        elif method in (LEAVE_SIGNALS, HEED_SIGNALS):
            (self._signals.leave if method == LEAVE_SIGNALS else self._signals.heed)()
            result = [None]
        elif isinstance(method, str) and method in answers:
            result = [answers[method]]
        else:
            raise NotImplementedError(f"{method} is not available on emulated chips")
        return result if not non_block else _done(result)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The chips' guesses after the last step, once; `NgramDrafts` are none of theirs."""
        drafts, self._drafts = self._drafts, {}
        return DraftTokenIds(list(drafts), list(drafts.values())) if drafts else None

    def check_health(self) -> None:
        """Do nothing: the next step meets lost chips."""

    def shutdown(self) -> None:
        """Stop the chips and Ray; idempotent."""
        remote_kv, self._remote_kv = getattr(self, "_remote_kv", None), None
        if remote_kv is not None:
            remote_kv.close()
        status, self._status = getattr(self, "_status", None), None
        if status is not None:
            status.close()
        tokens, self._tokens = getattr(self, "_tokens", None), None
        if isinstance(tokens, Fleet):
            tokens.stop()

    def live_engine(self) -> LiveEngine:
        """The engine; available once the clock is set."""
        assert self._engine is not None, "the clock is not set"
        return self._engine

    def live_fleet(self) -> Fleet:
        """The chips, once started; none with synthetic tokens."""
        assert isinstance(self._tokens, Fleet), "the chips are not started"
        return self._tokens
