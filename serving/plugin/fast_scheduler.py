"""vLLM's interface of a scheduler on the compiled schedulers of all ranks, for timing alone.

`LockstepScheduler` with arrays in the place of vLLM's schedulers: the same requests go to the same
ranks, and each step has the same rows. It draws the tokens of a step itself, all at once, and makes
one output of each, which is what vLLM's front reads. What it leaves out is in `fast_limits`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from vllm.multimodal import MULTIMODAL_REGISTRY, MultiModalRegistry
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.request import Request, RequestStatus

from emulator.arrays import Int32s, Int64s
from emulator.ultraserver.synthetic_tokens import SyntheticTokens, text_key
from emulator.units import NS_PER_S
from serving.engine.fault_log import Moved
from serving.engine.scheduler_state import SchedulerState
from serving.engine.step_report import StepReport
from serving.engine.wake_request import wake_request_of
from serving.plugin.fast_decision import FastDecision
from serving.plugin.fast_requests import FastRequests
from serving.plugin.merge import last_output, merge_client
from serving.plugin.request_place import WEIGHTS_KEY, is_plain
from serving.plugin.requests import sampling_spec
from serving.plugin.stats_client import StatsClient
from serving.plugin.translate import StillHeld, TimedOutput, stamp_events
from serving.settings import Settings
from serving.simulator.scheduler_arrays import NONE, SchedulerBounds

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import DraftTokenIds
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.structured_output import StructuredOutputManager


class FastScheduler(SchedulerInterface):
    """All ranks' schedulers as arrays behind the interface of one.

    Invariants: a request has a row from its arrival to its end, and one output of each token; a row
    of a step under way is no other request's before the step ends.
    """

    connector = None
    ec_connector = None

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        structured_output_manager: "StructuredOutputManager",
        block_size: int,
        hash_block_size: int,
        mm_registry: MultiModalRegistry = MULTIMODAL_REGISTRY,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        del structured_output_manager, mm_registry
        assert hash_block_size == block_size, "one group of KV blocks"
        assert not include_finished_set, "one engine"
        settings = Settings.from_additional_config(vllm_config.additional_config)
        pool = {"kv_blocks": kv_cache_config.num_blocks, "block_tokens": block_size}
        FastRequests(vllm_config, **pool).compile_kernels()
        self._requests = FastRequests(vllm_config, **pool)
        self._schedulers = self._requests.schedulers
        self._seed: int = vllm_config.model_config.seed or 0
        self._words = SyntheticTokens(Path(vllm_config.model_config.model), settings.ranks)
        self._stops: dict[int, frozenset[int]] = {}  # words that end a request, by row
        self._log_stats = log_stats
        self._prefix_stats = PrefixCacheStats()
        self._stats_client = StatsClient()
        self._wake = wake_request_of(vllm_config.instance_id)
        self._pause_state = PauseState.UNPAUSED
        self._ranks_up = np.ones(settings.ranks, dtype=np.bool_)
        self._closed_ranks: tuple[int, ...] = ()
        self._left: dict[int, int] = {}  # ranks that requests lost, until they have another
        self._moved_requests = 0
        self._moved: list[Moved] = []
        self._unstamped: list[EngineCoreEvent] = []  # of the step to come, or under way
        self._queued: dict[int, EngineCoreEvent] = {}  # of requests that wait for a rank, by row
        self._ended_meanwhile: list[int] = []  # rows of the step under way that are over
        self._refused: list[Request] = []
        self._decided: Int32s | None = None  # rows of the step that is decided and has not ended
        self._under_way: FastDecision | None = None
        self._announced = False
        self._owes_queues = False  # a request has ended since the engine heard of the queues

    def schedule(self, throttle_prefills: bool = False) -> FastDecision:
        """Decide a step; one under way is handed out again (`StillHeld`)."""
        assert not throttle_prefills, "one engine"
        self._announced = True
        schedulers = self._schedulers
        if self._under_way is not None:
            assert self._decided is not None
            self._under_way.hand_out_again(
                lambda: schedulers.queues,
                is_awaited=bool((self._requests.records["rank"][self._decided] != NONE).any()),
                arrived_requests=self._requests.arrivals,
                unplaced_requests=schedulers.unplaced,
            )
            return self._under_way
        self._wake.grant()
        self._owes_queues = False
        batch = schedulers.schedule(self._paused_bounds(), now_ns=0)  # no KV comes here
        rows = schedulers.arrays.rows[: len(batch.rank)]
        self._decided = rows["request"].copy()
        self._note_started(self._decided, batch.context_tokens)
        self._note_placed()
        continues, self._wake.continues = self._wake.continues, False
        moved, self._moved = tuple(self._moved), []
        state = SchedulerState(
            rank_states=schedulers.queues,
            arrived_requests=self._requests.arrivals,
            unplaced_requests=schedulers.unplaced,
            moved_requests=self._moved_requests,
            empty_rank_steps=schedulers.empty_rank_steps,
            moved=moved,
            closed_ranks=self._closed_ranks,
            has_tokens=len(rows) > 0,
        )
        return FastDecision.of(batch, state, continues=continues)

    def _paused_bounds(self) -> SchedulerBounds | None:
        """Of a step in a pause: no request starts, or none computes anything."""
        if self._runs:
            return None
        bounds = self._schedulers.bounds._replace(seats=0)
        if self._pause_state is PauseState.PAUSED_ALL:
            return bounds._replace(step_tokens=0)
        return bounds

    def _note_started(self, rows: Int32s, contexts: Int64s) -> None:
        """Note which of a step's requests begin, after `contexts` from the cache, or do so anew."""
        self._note_preempted()
        started = self._requests.started
        for place in np.flatnonzero(~started[rows]).tolist():
            row, cached = int(rows[place]), int(contexts[place])
            request, record = self._requests.request(row), self._requests.records[row]
            started[row] = self._requests.has_news[row] = True
            self._record(row, EngineCoreEventType.SCHEDULED)
            preempted = record["preemptions"] > 0
            if request.prefill_stats and not preempted:
                request.prefill_stats.set(request.num_prompt_tokens, cached, 0)
            if self._schedulers.cache is not None:
                self._prefix_stats.record(int(record["tokens"]), cached, preempted)

    def _note_preempted(self) -> None:
        started = self._requests.started
        for row in np.flatnonzero(started & ~self._requests.records["is_running"]).tolist():
            started[row] = False
            self._record(row, EngineCoreEventType.PREEMPTED)

    def _record(self, row: int, kind: EngineCoreEventType) -> None:
        """An event for a request's next output, stamped when the step to come ends."""
        if self._log_stats:
            request = self._requests.request(row)
            request.record_event(kind)
            self._requests.has_news[row] = True
            self._unstamped.append(request.events[-1])

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """None: grammars are refused."""
        return None

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: "ModelRunnerOutput"
    ) -> dict[int, EngineCoreOutputs]:
        """Give the step's requests their tokens, and follow what its report says of ranks."""
        assert isinstance(scheduler_output, FastDecision)
        if isinstance(model_runner_output, StillHeld):
            self._under_way = scheduler_output
            return {}
        report = None
        if isinstance(model_runner_output, TimedOutput):
            report = model_runner_output.report
        if report is not None:
            stamp_events(self._unstamped, report)
        self._unstamped = []
        merged = self._give_tokens(report)
        client = self._stats_client.of(merged, goes_on=self.has_unfinished_requests())
        if client is not None and (stats := self.make_stats()) is not None:
            merged.setdefault(client, EngineCoreOutputs()).scheduler_stats = stats
        self._decided = self._under_way = None
        ended = [] if report is None else self._follow(report)
        self._schedulers.take_inbox()
        self._note_placed()
        for request in (*ended, *self._refused):
            request.status = RequestStatus.FINISHED_ERROR
            last = EngineCoreOutputs(outputs=[last_output(request)])
            merge_client(merged, request.client_index, last)
        self._refused = []
        if report is not None:
            for outputs in merged.values():
                outputs.timestamp = report.end_s
        for row in self._ended_meanwhile:
            self._let_go(row)
        self._ended_meanwhile = []
        # After a step without tokens (a pause) time passes as it does.
        computed = scheduler_output.total_num_scheduled_tokens > 0
        self._wake.continues = computed and self.has_unfinished_requests()
        return merged

    def _give_tokens(self, report: StepReport | None) -> dict[int, EngineCoreOutputs]:
        """The outputs of the step's requests, of which the last ones go, by client."""
        schedulers, requests = self._schedulers, self._requests
        records, silent = requests.records, () if report is None else report.silent_ranks
        getting = self._decided
        assert getting is not None, "no step is decided"
        getting = getting[~records["is_prefill"][getting]]
        if silent:
            getting = getting[~np.isin(records["rank"][getting], silent)]
        drawn = self._words.draw(requests.keys[getting], records["tokens"][getting])
        clients = requests.clients[getting]
        token_ids = drawn.tolist()
        outputs = [
            EngineCoreOutput(request_id=name, new_token_ids=[token_id])
            for name, token_id in zip(requests.names[getting].tolist(), token_ids, strict=True)
        ]
        if self._stops:
            self._stop(getting.tolist(), token_ids, outputs)
        end_ns = 0 if report is None else round(report.end_s * NS_PER_S)
        given = schedulers.give_tokens(end_ns, silent)
        assert len(given) == len(getting), "a token for each request that wants one"
        requests.note_tokens(getting, drawn)
        has_news, ends = requests.has_news[getting], records["tokens_left"][getting] == 0
        for place in np.flatnonzero(has_news).tolist():
            self._tell_news(int(getting[place]), outputs[place])
        if schedulers.ended:
            for place in np.flatnonzero(ends).tolist():
                self._end(int(getting[place]), outputs[place])
        if report is not None and report.weights:
            mark = {WEIGHTS_KEY: [report.weights[0]]}  # all ranks serve one version
            for place in np.flatnonzero(has_news | ends).tolist():
                if not is_plain(outputs[place]):
                    outputs[place].kv_transfer_params = mark
        return _by_client(outputs, clients)

    def _stop(self, rows: list[int], token_ids: list[int], outputs: list[EngineCoreOutput]) -> None:
        """End requests that got a word at which they stop."""
        for row, token_id, output in zip(rows, token_ids, outputs, strict=True):
            if token_id not in self._stops.get(row, ()):
                continue
            self._requests.records["tokens_left"][row] = 1
            output.finish_reason = FinishReason.STOP
            params = self._requests.request(row).sampling_params
            if params is not None and token_id != params.eos_token_id:
                output.stop_reason = token_id

    def _tell_news(self, row: int, output: EngineCoreOutput) -> None:
        """Add what has happened to a request since its last output."""
        request = self._requests.request(row)
        self._requests.has_news[row] = False
        output.events = request.take_events()
        output.prefill_stats = stats = request.take_prefill_stats()
        if stats is not None and self._schedulers.cache is not None:
            block_tokens = self._schedulers.bounds.block_tokens
            stats.finalize(request.num_prompt_tokens // block_tokens * block_tokens)

    def _end(self, row: int, output: EngineCoreOutput) -> None:
        """The request of a row has its last output."""
        request = self._requests.request(row)
        stopped = output.finish_reason is FinishReason.STOP
        request.status = (
            RequestStatus.FINISHED_STOPPED if stopped else RequestStatus.FINISHED_LENGTH_CAPPED
        )
        output.finish_reason = request.get_finished_reason()
        self._let_go(row)

    def _let_go(self, row: int) -> None:
        self._stops.pop(row, None)
        self._left.pop(row, None)
        self._queued.pop(row, None)
        self._requests.free(row)
        self._owes_queues = True

    def _follow(self, report: StepReport) -> list[Request]:
        """Move requests off ranks that lost their KV or went down; returns those that end."""
        schedulers, lost = self._schedulers, list(report.lost_ranks)
        up = report.ranks_up_after(self._ranks_up)
        changed = (up != self._ranks_up).any() or report.closed_ranks != self._closed_ranks
        if not (changed or lost or report.renewed_ranks or schedulers.unplaced):
            return []
        self._ranks_up, self._closed_ranks = up, report.closed_ranks
        closed = np.zeros(len(up), dtype=np.bool_)
        closed[list(report.closed_ranks)] = True
        schedulers.set_ranks(up, closed)
        ranks = self._requests.records["rank"]
        leaving = np.flatnonzero(np.isin(ranks, np.union1d(lost, np.flatnonzero(~up))))
        self._left |= {row: int(ranks[row]) for row in leaving.tolist()}
        if lost or len(leaving) or report.renewed_ranks:
            self._prefix_stats.reset = True
        ended = schedulers.move(lost, report.renewed_ranks)
        self._note_preempted()
        requests = []
        for row in ended:
            request, left = self._requests.request(row), self._left.get(row)
            if left is not None:
                self._moved.append(Moved(rank=left, name=request.request_id, failed=True))
            requests.append(request)
            if row in self._queued:
                self._unstamped.append(self._queued[row])
            self._let_go(row)
        if ended:
            stamp_events(self._unstamped, report)
            self._unstamped = []
        return requests

    def _note_placed(self) -> None:
        """Note requests that waited for a rank, or lost one, and have one now."""
        if not (self._queued or self._left):
            return
        ranks = self._requests.records["rank"]
        for row in [row for row in self._queued if ranks[row] != NONE]:
            self._unstamped.append(self._queued.pop(row))
        for row, left in list(self._left.items()):
            if ranks[row] != NONE:
                name = self._requests.request(row).request_id
                self._moved.append(Moved(rank=left, name=name, failed=False))
                self._moved_requests += 1
                del self._left[row]

    def make_stats(self) -> SchedulerStats | None:
        """Counts of all ranks, and prefix hits since the last ones; None when stats are off."""
        if not self._log_stats:
            return None
        running, waiting = self.get_request_counts()
        prefix, self._prefix_stats = self._prefix_stats, PrefixCacheStats()
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting - self._schedulers.unplaced,
            kv_cache_usage=self.get_kv_cache_usage(),
            prefix_cache_stats=prefix,
        )

    def add_request(self, request: Request) -> None:
        """Take a request; while no rank is open, or a step is under way, it waits for one."""
        if request.resumable or request.request_id in self._requests:
            self._refused.append(request)  # a session of streamed input
            return
        params, prompt = request.sampling_params, request.prompt_token_ids
        assert params is not None, "text only"
        assert prompt is not None, "no embeddings"
        sampling = sampling_spec(params, request.request_id, self._seed)
        key = text_key(np.array(prompt, dtype=np.int32), sampling)
        row = self._requests.add(request, key)
        ends = [] if params.eos_token_id is None else [params.eos_token_id]
        if stops := self._words.words_among([*ends, *(params.stop_token_ids or ())]):
            self._stops[row] = stops
        if self._log_stats:
            self._requests.has_news[row] = True
            request.record_event(EngineCoreEventType.QUEUED)
            self._queued[row] = request.events[-1]
        self._schedulers.put(row, begins=self._under_way is None)
        self._note_placed()

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Finish requests; unknown ids are ignored, as by vLLM."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        wanted = self._requests.by_rank() if request_ids is None else dict.fromkeys(request_ids)
        finished = []
        for name in wanted:
            row = self._requests.row_of(name)
            if row is None or row in self._ended_meanwhile:
                continue
            request = self._requests.request(row)
            request.status = finished_status
            self._schedulers.abort(row)
            finished.append(request)
            if self._decided is not None and row in self._decided:
                self._requests.records["is_prefill"][row] = True  # it gets no token
                self._requests.started[row] = False
                self._ended_meanwhile.append(row)
            else:
                self._let_go(row)
        return finished

    def update_draft_token_ids(self, draft_token_ids: "DraftTokenIds") -> None:
        """Not called: synthetic tokens have no drafts."""
        raise AssertionError("no drafts of synthetic tokens")

    def update_draft_token_ids_in_output(
        self, draft_token_ids: "DraftTokenIds", scheduler_output: SchedulerOutput
    ) -> None:
        """Not called: synthetic tokens have no drafts."""
        raise AssertionError("no drafts of synthetic tokens")

    def get_num_unfinished_requests(self) -> int:
        """Requests that steps go on with, or end in error; in a pause, new ones wait."""
        running, waiting = self.get_request_counts()
        unplaced = self._schedulers.unplaced
        owed = unplaced if self._owes_unplaced else 0
        match self._pause_state:
            case PauseState.PAUSED_ALL:
                return owed
            case PauseState.PAUSED_NEW:
                return running + owed
        return running + waiting - unplaced + owed + len(self._refused)

    @property
    def _owes_unplaced(self) -> bool:
        """Whether requests without a rank need a step; in a pause, new ones wait."""
        return bool(self._schedulers.unplaced) and (self._runs or not self._ranks_up.any())

    @property
    def _runs(self) -> bool:
        return self._pause_state is PauseState.UNPAUSED

    def has_finished_requests(self) -> bool:
        """Whether the engine has yet to hear of queues from which a request has gone."""
        return self._owes_queues

    def has_requests(self) -> bool:
        """Also true once at the start, so that the engine gets the queues."""
        return (
            not self._announced
            or self._under_way is not None
            or self._wake.wanted
            or (self._wake.waits and self._runs)
            or self._owes_queues
            or self.get_num_unfinished_requests() > 0
        )

    @property
    def pause_state(self) -> PauseState:
        """As set last."""
        return self._pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Pause or resume all ranks."""
        self._pause_state = pause_state
        self._wake.paused = not self._runs

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Empty every rank's prefix cache; true when all could, never while a step is held."""
        del reset_connector
        if self._under_way is not None:
            return False
        emptied = self._requests.reset_prefixes(restarts=reset_running_requests)
        self._prefix_stats.reset |= emptied > 0
        self._note_preempted()
        return emptied == len(self._ranks_up)

    def reset_encoder_cache(self) -> None:
        """Do nothing: there are no encoders."""

    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting), summed over ranks."""
        running = int(self._schedulers.arrays.ranks["running_count"].sum())
        return running, self._schedulers.waiting

    def get_kv_cache_usage(self) -> float:
        """Share of all ranks' KV blocks in use."""
        blocks = self._schedulers.all_blocks
        return float(1.0 - self._schedulers.arrays.ranks["free_blocks"].mean() / blocks)

    def shutdown(self) -> None:
        """Do nothing."""


def _by_client(outputs: list[EngineCoreOutput], clients: Int64s) -> dict[int, EngineCoreOutputs]:
    """The outputs of each API process; `clients` [outputs]."""
    if not clients.any():  # the first, and mostly the only one
        return {0: EngineCoreOutputs(outputs=outputs)} if outputs else {}
    return {
        client: EngineCoreOutputs(
            outputs=[outputs[place] for place in np.flatnonzero(clients == client).tolist()]
        )
        for client in np.unique(clients).tolist()
    }
