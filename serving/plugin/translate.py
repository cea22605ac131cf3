"""Translates SchedulerOutput to RankStep, RankOutput to ModelRunnerOutput; see tests/contracts.

The executor answers vLLM's scheduler with a `TimedOutput`, tokens and report, or `StillHeld`.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.core.sched.output import GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput

from emulator.specs.step import NewRequest, RankOutput, RankStep, RowLogprobs, Scheduled
from serving.engine.step_report import StepReport
from serving.plugin.requests import sampling_spec


def rank_step(
    rank: int,
    output: SchedulerOutput,
    finished: list[str],
    engine_seed: int,
    grammar: GrammarOutput | None,
    unseen: Set[str] = frozenset(),
) -> RankStep:
    """Translate one rank's decision; `finished` since the chips' last step; `unseen` of any."""
    counts, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    new = [_new_request(data, engine_seed) for data in output.scheduled_new_reqs]
    scheduled = [
        Scheduled(
            request_id=data.req_id,
            first_position=data.num_computed_tokens,
            new_tokens=counts[data.req_id],
            draft_tokens=drafts.get(data.req_id, []),
        )
        for data in output.scheduled_new_reqs
    ]
    cached = output.scheduled_cached_reqs
    for request_id, blocks, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        scheduled.append(
            Scheduled(
                request_id=request_id,
                first_position=computed,
                new_tokens=counts[request_id],
                new_block_ids=list(blocks[0]) if blocks else [],
                replaces_blocks=request_id in cached.resumed_req_ids,
                draft_tokens=drafts.get(request_id, []),
            )
        )
    constrained = grammar.structured_output_request_ids if grammar else []
    return RankStep(
        rank=rank,
        new=new,
        scheduled=scheduled,
        finished=finished,
        block_copies=[(c.src_block_id, c.dst_block_id) for c in output.kv_cache_block_copies or ()],
        grammar_rows=[request_id for request_id in constrained if request_id in counts],
        unseen=sorted(unseen & counts.keys()),
    )


def _new_request(data: NewRequestData, engine_seed: int) -> NewRequest:
    assert data.prompt_token_ids is not None, data.req_id
    assert data.sampling_params is not None, data.req_id
    tokens = data.prefill_token_ids or data.prompt_token_ids
    return NewRequest(
        request_id=data.req_id,
        token_ids=list(tokens),
        prompt_tokens=len(data.prompt_token_ids),
        sampling=sampling_spec(data.sampling_params, data.req_id, engine_seed),
        block_ids=list(data.block_ids[0]),
    )


def grammar_bitmask(step: RankStep, grammar: GrammarOutput | None) -> NDArray[np.int32] | None:
    """Rows of vLLM's bitmask that constrain `step`, in the order of its `grammar_rows`."""
    if grammar is None or not step.grammar_rows:
        return None
    row_of = {name: row for row, name in enumerate(grammar.structured_output_request_ids)}
    rows = [row_of[request_id] for request_id in step.grammar_rows]
    return np.ascontiguousarray(grammar.grammar_bitmask[rows], dtype=np.int32)


def model_runner_output(
    steps: Sequence[RankStep], outputs: dict[int, RankOutput]
) -> ModelRunnerOutput:
    """Merge the ranks' outputs; a request without sampled tokens gets an empty list."""
    request_ids = [item.request_id for step in steps for item in step.scheduled]
    index = {request_id: row for row, request_id in enumerate(request_ids)}
    sampled: list[list[int]] = [[] for _ in request_ids]
    prompt_logprobs: dict[str, LogprobsTensors | None] = {}
    for output in outputs.values():
        for request_id, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
            sampled[index[request_id]].append(token)
        for request_id, rows in output.prompt_logprobs.items():
            prompt_logprobs[request_id] = _tensors(rows)
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index=index,
        sampled_token_ids=sampled,
        logprobs=_merge_logprobs(index, outputs),
        prompt_logprobs_dict=prompt_logprobs,
    )


def _merge_logprobs(index: dict[str, int], outputs: dict[int, RankOutput]) -> LogprobsLists | None:
    """A row per scheduled request, as wide as the widest."""
    asked = [output for output in outputs.values() if output.logprobs is not None]
    if not asked:
        return None
    width = max(output.logprobs.token_ids.shape[1] for output in asked if output.logprobs)
    token_ids = np.zeros((len(index), width), dtype=np.int32)
    logprobs = np.full((len(index), width), -np.inf, dtype=np.float32)
    ranks = np.zeros(len(index), dtype=np.int32)
    for output in asked:
        assert output.logprobs is not None
        rows = [index[request_id] for request_id in dict.fromkeys(output.request_ids)]
        columns = output.logprobs.token_ids.shape[1]
        token_ids[rows, :columns] = output.logprobs.token_ids
        logprobs[rows, :columns] = output.logprobs.logprobs
        ranks[rows] = output.logprobs.ranks
    return LogprobsLists(token_ids, logprobs, ranks, None)


def _tensors(rows: RowLogprobs) -> LogprobsTensors:
    return LogprobsTensors(
        torch.from_numpy(np.array(rows.token_ids)),
        torch.from_numpy(np.array(rows.logprobs)),
        torch.from_numpy(np.array(rows.ranks)),
    )


@dataclass
class TimedOutput(ModelRunnerOutput):
    """A ModelRunnerOutput with its step's report."""

    report: StepReport | None = field(default=None)


@dataclass
class StillHeld(ModelRunnerOutput):
    """The output of a step under way: see `EngineSteps`."""


def stamp_events(events: Iterable[EngineCoreEvent], report: StepReport) -> None:
    """Replace wall stamps on events of the step of `report` by emulated seconds."""
    for event in events:
        if event.type is EngineCoreEventType.QUEUED:
            event.timestamp = min(report.at_monotonic_s(event.timestamp), report.begin_s)
        else:
            event.timestamp = report.begin_s
