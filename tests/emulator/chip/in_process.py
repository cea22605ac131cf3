"""Chips without processes, driven through the lockstep like the fleet's actors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.chip.chip import Chip
from emulator.chip.commands import BeginStep, RepeatStep
from emulator.chip.draft_model import DraftModel
from emulator.chip.effects import Effect
from emulator.compute.checkpoint import load_shard, read_architecture
from emulator.compute.draft_layer import draft_logits, leave_draft_layer
from emulator.compute.paged_kv import PagedKv
from emulator.compute.stored_weights import store_shard
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.placement import ExpertPlacement
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.lockstep import Lockstep

F32 = NDArray[np.float32]

NO_BITMASK = np.zeros((0, 0), dtype=np.int32)
GREEDY = SamplingSpec(temperature=0.0)


class RecordingChip(Chip):
    """A chip that also records the logits of every position, and those of its drafts' passes."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.rows: dict[tuple[str, int], list[F32]] = {}
        self.drafts: list[tuple[NDArray[np.int64], F32]] = []

    def _end_layer(self, running: Any, x: F32) -> Effect:
        if running.layer == self.architecture.layers - 1:
            self._record(running.command.step.scheduled, self._head.logits(x))
        elif running.layer == self.architecture.layers:
            scores = draft_logits(self._shard, leave_draft_layer(self._shard, x))
            self.drafts.append((running.batch.spans.positions, scores))
        return super()._end_layer(running, x)

    def _record(self, scheduled: Sequence[Scheduled], scores: F32) -> None:
        row = 0
        for item in scheduled:
            for position in range(item.first_position, item.first_position + item.new_tokens):
                self.rows.setdefault((item.request_id, position), []).append(scores[row])
                row += 1


class InProcessChips:
    """Chips 0..chips-1 of the checkpoint in `directory`, `tp` to a rank, stepped like a fleet.

    Every slot of the KV pools holds noise at first, like a used pool.
    """

    def __init__(  # noqa: PLR0913  a keyword for each thing in which machines differ
        self,
        directory: Path,
        *,
        chips: int,
        tp: int = 1,
        placement: ExpertPlacement | None = None,
        kv_blocks: int = 256,
        block_tokens: int = 16,
        mapped: bool = False,
        formats: ModelFormats = FP32_MODEL,
        draft_tokens: int = 0,
        draft_dir: Path | None = None,
    ) -> None:
        drafts = draft_tokens > 0 and draft_dir is None
        arch = read_architecture(directory)
        self.block_tokens = block_tokens
        self.kv_blocks = kv_blocks
        self.tp = tp
        self.ranks = chips // tp
        self.placement = placement or ExpertPlacement.even(
            layers=len(arch.expert_layers), experts=arch.experts, chips=chips, ep=chips
        )
        self.experts = ExpertMap(self.placement, drafts=drafts)
        self.chips: list[RecordingChip] = []
        self._sampled: dict[int, RankOutput] = {}
        for chip in range(chips):
            shard = load_shard(
                directory,
                arch,
                self.placement.expert_of_slot[:, chip].tolist(),
                tp=tp,
                tp_index=chip % tp,
                mapped=mapped,
                drafts=drafts,
            )
            shard = store_shard(shard, formats)
            kv = PagedKv.of(
                arch,
                groups=shard.groups,
                blocks=kv_blocks,
                block_tokens=block_tokens,
                drafts=drafts,
                formats=formats,
            )
            _fill_with_noise(kv)
            draft_model = None
            if draft_dir is not None and chip % tp == 0:
                draft_model = DraftModel.load(
                    draft_dir, count=draft_tokens, kv_blocks=kv_blocks, block_tokens=block_tokens
                )
                _fill_with_noise(draft_model._kv)
            self.chips.append(
                RecordingChip(
                    shard,
                    kv,
                    tp=tp,
                    tp_index=chip % tp,
                    draft_tokens=draft_tokens,
                    draft_model=draft_model,
                )
            )

    def begin(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]] | None = None
    ) -> dict[int, BeginStep | RepeatStep]:
        """The first command of each chip of the ranks in `steps`."""
        masks = bitmasks or {}
        commands: dict[int, BeginStep | RepeatStep] = {}
        for step in steps:
            mask = masks.get(step.rank, NO_BITMASK)
            lead = step.rank * self.tp
            commands[lead] = BeginStep(step=step, grammar_bitmask=mask)
            before = self._sampled.pop(step.rank, None)
            for chip in range(lead + 1, lead + self.tp):
                commands[chip] = BeginStep(
                    step=step,
                    grammar_bitmask=mask,
                    sampled_ids=before.request_ids if before else [],
                    sampled_tokens=before.token_ids if before else np.zeros(0, dtype=np.int32),
                )
        return commands

    def drive(
        self, begin: Mapping[int, BeginStep | RepeatStep], rounds: int | None = None
    ) -> Lockstep:
        """Run a step to its end, or stop it after so many rounds of messages."""
        lockstep = Lockstep(begin, self.experts, self.tp)
        commands = lockstep.start()
        while commands and rounds != 0:
            rounds = None if rounds is None else rounds - 1
            replies = {chip: self.chips[chip].handle(c) for chip, c in commands.items()}
            if rounds == 0:
                lockstep.note_done(replies)
            else:
                commands = lockstep.advance(replies)
        self._sampled.update(lockstep.outputs)
        return lockstep

    def step(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]] | None = None
    ) -> dict[int, RankOutput]:
        """Compute one step of every rank in `steps`; returns the outputs by rank."""
        return self.drive(self.begin(steps, bitmasks)).outputs

    def rows(self, request_id: str) -> F32:
        """The logits [positions, vocab] of a request, wherever computed.

        Asserts that recomputed ones have the same bits.
        """
        found: dict[int, F32] = {}
        for chip in self.chips:
            for (name, position), rows in chip.rows.items():
                if name == request_id:
                    first = found.setdefault(position, rows[0])
                    assert all((row == first).all() for row in rows), (name, position)
        return np.array([found[position] for position in range(len(found))])


def _fill_with_noise(kv: PagedKv) -> None:
    blocks = range(kv.blocks)
    rng = np.random.default_rng(0)
    keys, values = (
        10 * rng.standard_normal(pool.shape, dtype=np.float32) for pool in kv.read_blocks(blocks)
    )
    kv.write_blocks(blocks, keys, values)


def serve(
    chips: InProcessChips,
    prompts: Mapping[str, Sequence[int]],
    *,
    new_tokens: int,
    chunk_tokens: int = 100_000,
    sampling: SamplingSpec = GREEDY,
    shuffle: np.random.Generator | None = None,
) -> dict[str, list[int]]:
    """Serve `prompts` together, in turn on each rank; returns their texts.

    Prompts are computed in chunks of `chunk_tokens`; `shuffle` mixes the pools' blocks.
    """
    texts: dict[str, list[int]] = {name: [] for name in prompts}
    rank_of = {name: index % chips.ranks for index, name in enumerate(prompts)}
    computed = dict.fromkeys(prompts, 0)
    new = new_requests(chips, prompts, rank_of, new_tokens, sampling, shuffle)
    while any(len(text) < new_tokens for text in texts.values()):
        steps = []
        for rank in range(chips.ranks):
            scheduled = []
            for name in prompts:
                left = len(prompts[name]) + len(texts[name]) - computed[name]
                if rank_of[name] == rank and len(texts[name]) < new_tokens:
                    count = min(left, chunk_tokens)
                    scheduled.append(
                        Scheduled(request_id=name, first_position=computed[name], new_tokens=count)
                    )
                    computed[name] += count
            if scheduled:
                steps.append(
                    RankStep(rank=rank, new=new.pop(rank, []), scheduled=scheduled, finished=[])
                )
        for output in chips.step(steps).values():
            for name, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
                texts[name].append(token)
    return texts


def new_requests(
    chips: InProcessChips,
    prompts: Mapping[str, Sequence[int]],
    rank_of: Mapping[str, int],
    new_tokens: int,
    sampling: SamplingSpec,
    shuffle: np.random.Generator | None,
) -> dict[int, list[NewRequest]]:
    """All requests by rank, each with blocks for its prompt and text."""
    free = {}
    for rank in range(chips.ranks):
        blocks = np.arange(1, chips.kv_blocks)
        free[rank] = (blocks if shuffle is None else shuffle.permutation(blocks)).tolist()
    new: dict[int, list[NewRequest]] = {}
    for name, prompt in prompts.items():
        rank = rank_of[name]
        count = -(-(len(prompt) + new_tokens) // chips.block_tokens)
        blocks, free[rank] = free[rank][:count], free[rank][count:]
        assert len(blocks) == count, "the pool is too small"
        new.setdefault(rank, []).append(
            NewRequest(
                request_id=name,
                token_ids=list(prompt),
                prompt_tokens=len(prompt),
                sampling=sampling,
                block_ids=blocks,
            )
        )
    return new
