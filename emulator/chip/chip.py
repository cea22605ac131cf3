"""One chip as a pure state machine: a command in, one effect out.

A chip holds an attention replica with its KV cache, and some experts. Its rank's tokens go through
the layers here; at each layer they leave for the experts (`Dispatch`) and come back (`Combine`).
It knows no clock, no socket and no other chip.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.chip.commands import BeginStep, Combine, Command, RunExperts
from emulator.chip.effects import Dispatch, Effect, ExpertRows, StepDone
from emulator.chip.request_table import ChipRequest, RequestTable
from emulator.compute.checkpoint import ModelShard
from emulator.compute.experts import run_experts
from emulator.compute.logprobs import prompt_logprobs
from emulator.compute.paged_kv import PagedKv
from emulator.compute.qwen3_moe import (
    Routed,
    attend_and_route,
    batch_rotation,
    combine_experts,
    embed,
    logits,
)
from emulator.compute.rope import Rotation
from emulator.compute.sampling import sample
from emulator.compute.tiled_matmul import F32
from emulator.compute.token_batch import TokenBatch, make_token_batch
from emulator.specs.step import RankOutput, RowLogprobs, Scheduled


class _RunningStep:
    """The step in progress: made by `BeginStep`, ended by the last layer's `Combine`."""

    __slots__ = ("angles", "batch", "bitmask", "command", "routed")

    def __init__(self, command: BeginStep, batch: TokenBatch, angles: Rotation) -> None:
        self.command = command.step
        self.bitmask = command.grammar_bitmask
        self.batch = batch
        self.angles = angles
        self.routed: Routed | None = None


class Chip:
    """A chip that has loaded its shard.

    States: idle, or in a step at some layer. `BeginStep` enters a step (or ends it at once when it
    has no tokens), `Combine` moves to the next layer, the last one samples and returns to idle.
    `RunExperts` is answered in any state and changes nothing.
    """

    def __init__(self, shard: ModelShard, kv: PagedKv) -> None:
        self._shard = shard
        self._kv = kv
        self._requests = RequestTable()
        self._running: _RunningStep | None = None

    def handle(self, command: Command) -> Effect:
        """Carry out `command`; returns what it leads to."""
        match command:
            case BeginStep():
                return self._begin(command)
            case RunExperts():
                return self._run_experts(command)
            case Combine():
                return self._combine(command)
            case _:
                raise AssertionError(f"a chip does not handle {type(command).__name__}")

    def _begin(self, command: BeginStep) -> Effect:
        assert self._running is None, "a step began before the last one ended"
        step = command.step
        self._requests.apply(step)
        for source, target in step.block_copies:
            self._kv.copy_block(source, target)
        if step.is_idle:
            return StepDone(output=_no_output(step.rank))
        batch = make_token_batch(self._requests.spans(step.scheduled), self._kv.block_tokens)
        running = _RunningStep(command, batch, batch_rotation(self._shard, batch))
        self._running = running
        return self._enter_layer(running, 0, embed(self._shard, batch))

    def _enter_layer(self, running: _RunningStep, layer: int, x: F32) -> Dispatch:
        running.routed = attend_and_route(
            self._shard, self._kv, layer, x, running.batch, running.angles
        )
        return Dispatch(layer=layer, hidden=running.routed.hidden, chosen=running.routed.chosen)

    def _run_experts(self, command: RunExperts) -> ExpertRows:
        weights = self._shard.layers[command.layer]
        rows = command.rows[command.row_of_pair]  # [pairs, hidden]
        out = run_experts(rows, command.counts, weights.gate_up, weights.down)
        return ExpertRows(layer=command.layer, rows=out)

    def _combine(self, command: Combine) -> Effect:
        running = self._running
        assert running is not None, "a combine came outside a step"
        assert running.routed is not None
        x = combine_experts(running.routed, command.expert_rows)
        if command.layer + 1 < self._shard.architecture.layers:
            return self._enter_layer(running, command.layer + 1, x)
        self._running = None
        return StepDone(output=self._finish(running, x))

    def _finish(self, running: _RunningStep, x: F32) -> RankOutput:
        """Project, sample and remember: the end of a step."""
        starts = running.batch.starts.tolist()
        prompt_rows: dict[str, RowLogprobs] = {}
        sampled: list[Scheduled] = []
        rows: list[int] = []
        for start, item in zip(starts, running.command.scheduled, strict=True):
            request = self._requests[item.request_id]
            end = item.first_position + item.new_tokens
            if request.sampling.prompt_logprobs is not None:
                complete = self._score_prompt(request, item, x[start : start + item.new_tokens])
                if complete is not None:
                    prompt_rows[item.request_id] = complete
            if end == len(request):
                sampled.append(item)
                rows.append(start + item.new_tokens - 1)
        if not rows:
            return _no_output(running.command.rank, prompt_rows)
        return self._sample(running, sampled, logits(self._shard, x[rows]), prompt_rows)

    def _sample(
        self,
        running: _RunningStep,
        sampled: Sequence[Scheduled],
        scores: F32,
        prompt_rows: dict[str, RowLogprobs],
    ) -> RankOutput:
        requests = [self._requests[item.request_id] for item in sampled]
        drawn = sample(
            scores,
            [request.sampling for request in requests],
            [request.prompt for request in requests],
            [request.generated for request in requests],
            _bitmask_rows(running, [item.request_id for item in sampled]),
        )
        for request, token_id in zip(requests, drawn.token_ids.tolist(), strict=True):
            request.append(token_id)
        return RankOutput(
            rank=running.command.rank,
            request_ids=[item.request_id for item in sampled],
            token_ids=drawn.token_ids,
            logprobs=drawn.logprobs,
            prompt_logprobs=prompt_rows,
        )

    def _score_prompt(self, request: ChipRequest, item: Scheduled, x: F32) -> RowLogprobs | None:
        """Add the log-probabilities of this chunk's prompt tokens; returns all of them at the end.

        Row i of `x` predicts the token at position first_position + i + 1. What a preempted request
        computes again is neither scored nor returned again.
        """
        count = request.sampling.prompt_logprobs
        assert count is not None
        end = item.first_position + item.new_tokens
        first = max(item.first_position, request.scored_tokens)
        last = min(end, request.prompt_tokens - 1)
        if first < last:
            following = request.tokens(first + 1, last + 1)
            rows = x[first - item.first_position : last - item.first_position]
            request.prompt_rows.append(prompt_logprobs(logits(self._shard, rows), following, count))
            request.scored_tokens = last
        return _concatenate(request) if end >= request.prompt_tokens else None


def _concatenate(request: ChipRequest) -> RowLogprobs | None:
    parts, request.prompt_rows = request.prompt_rows, []
    if not parts:
        return None
    return RowLogprobs(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )


def _bitmask_rows(running: _RunningStep, request_ids: Sequence[str]) -> NDArray[np.int32] | None:
    """Order the step's grammar bitmask by `request_ids`; unconstrained rows allow every token."""
    constrained = running.command.grammar_rows
    if not constrained:
        return None
    row_of = {request_id: row for row, request_id in enumerate(constrained)}
    rows = np.full((len(request_ids), running.bitmask.shape[1]), -1, dtype=np.int32)
    for index, request_id in enumerate(request_ids):
        if request_id in row_of:
            rows[index] = running.bitmask[row_of[request_id]]
    return rows


def _no_output(rank: int, prompt_rows: dict[str, RowLogprobs] | None = None) -> RankOutput:
    return RankOutput(
        rank=rank,
        request_ids=[],
        token_ids=np.zeros(0, dtype=np.int32),
        logprobs=None,
        prompt_logprobs=prompt_rows or {},
    )
