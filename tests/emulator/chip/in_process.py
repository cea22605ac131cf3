"""Chips without processes: driven through the exchange as the fleet drives its actors."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.chip.chip import Chip
from emulator.chip.commands import BeginStep
from emulator.chip.effects import Dispatch, Effect, ExpertRows, StepDone
from emulator.compute.architecture import read_architecture
from emulator.compute.checkpoint import load_shard
from emulator.compute.paged_kv import PagedKv
from emulator.compute.qwen3_moe import logits
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from emulator.ultraserver.exchange import ExpertMap, finish_exchange, plan_exchange

F32 = NDArray[np.float32]

NO_BITMASK = np.zeros((0, 0), dtype=np.int32)
GREEDY = SamplingSpec(temperature=0.0)


class RecordingChip(Chip):
    """A chip that also notes the logits of every position that it computes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.rows: dict[tuple[str, int], list[F32]] = {}

    def _finish(self, running: object, x: F32) -> RankOutput:
        scores = logits(self._shard, x)
        row = 0
        for item in running.command.scheduled:  # type: ignore[attr-defined]
            for position in range(item.first_position, item.first_position + item.new_tokens):
                self.rows.setdefault((item.request_id, position), []).append(scores[row])
                row += 1
        return super()._finish(running, x)  # type: ignore[arg-type]


class InProcessChips:
    """Chips 0..chips-1 of the checkpoint in `directory`, with the interface of `Fleet.step`.

    Every slot of the KV pools holds noise at first, as a pool does that was used before.
    """

    def __init__(
        self, directory: Path, *, chips: int, kv_blocks: int = 256, block_tokens: int = 16
    ) -> None:
        arch = read_architecture(directory)
        self.block_tokens = block_tokens
        self.kv_blocks = kv_blocks
        self._experts = ExpertMap.contiguous(arch.experts, chips)
        self.chips: list[RecordingChip] = []
        for chip in range(chips):
            kv = PagedKv(
                layers=arch.layers,
                kv_heads=arch.kv_heads,
                head_dim=arch.head_dim,
                blocks=kv_blocks,
                block_tokens=block_tokens,
            )
            _fill_with_noise(kv, (arch.layers, arch.kv_heads, arch.head_dim))
            shard = load_shard(directory, arch, self._experts.experts_of(chip))
            self.chips.append(RecordingChip(shard, kv))

    def step(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]] | None = None
    ) -> dict[int, RankOutput]:
        """Compute one step of every rank in `steps`; returns the outputs by rank."""
        masks = bitmasks or {}
        replies: dict[int, Effect] = {
            step.rank: self.chips[step.rank].handle(
                BeginStep(step=step, grammar_bitmask=masks.get(step.rank, NO_BITMASK))
            )
            for step in steps
        }
        outputs: dict[int, RankOutput] = {}
        while True:
            for rank, reply in replies.items():
                if isinstance(reply, StepDone):
                    outputs[rank] = reply.output
            dispatches = {rank: r for rank, r in replies.items() if isinstance(r, Dispatch)}
            if not dispatches:
                return outputs
            exchange = plan_exchange(dispatches, self._experts, len(self.chips))
            answers: dict[int, ExpertRows] = {}
            for chip, work in exchange.work.items():
                answer = self.chips[chip].handle(work)
                assert isinstance(answer, ExpertRows)
                answers[chip] = answer
            combines = finish_exchange(exchange, answers)
            replies = {rank: self.chips[rank].handle(c) for rank, c in combines.items()}

    def rows(self, request_id: str) -> F32:
        """The logits [positions, vocab] of a request, wherever they were computed.

        What was computed more than once must have had the same bits each time.
        """
        found: dict[int, F32] = {}
        for chip in self.chips:
            for (name, position), rows in chip.rows.items():
                if name == request_id:
                    first = found.setdefault(position, rows[0])
                    assert all((row == first).all() for row in rows), (name, position)
        return np.array([found[position] for position in range(len(found))])


def _fill_with_noise(kv: PagedKv, shape: tuple[int, int, int]) -> None:
    layers, kv_heads, head_dim = shape
    slots = np.arange(kv.blocks * kv.block_tokens)
    rng = np.random.default_rng(0)
    for layer in range(layers):
        noise = rng.standard_normal((2, len(slots), kv_heads, head_dim)).astype(np.float32)
        kv.write(layer, slots, 10 * noise[0], 10 * noise[1])


def serve(
    chips: InProcessChips,
    prompts: Mapping[str, Sequence[int]],
    *,
    new_tokens: int,
    chunk_tokens: int = 100_000,
    sampling: SamplingSpec = GREEDY,
    shuffle: np.random.Generator | None = None,
) -> dict[str, list[int]]:
    """Serve `prompts` together, one request after the other on each rank; returns their texts.

    Every prompt is computed in chunks of `chunk_tokens`; `shuffle` mixes the pools' blocks.
    """
    texts: dict[str, list[int]] = {name: [] for name in prompts}
    rank_of = {name: index % len(chips.chips) for index, name in enumerate(prompts)}
    computed = dict.fromkeys(prompts, 0)
    new = _new_requests(chips, prompts, rank_of, new_tokens, sampling, shuffle)
    while any(len(text) < new_tokens for text in texts.values()):
        steps = []
        for rank in range(len(chips.chips)):
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


def _new_requests(
    chips: InProcessChips,
    prompts: Mapping[str, Sequence[int]],
    rank_of: Mapping[str, int],
    new_tokens: int,
    sampling: SamplingSpec,
    shuffle: np.random.Generator | None,
) -> dict[int, list[NewRequest]]:
    """All requests by rank, each with the blocks for its prompt and its text."""
    free = {}
    for rank in range(len(chips.chips)):
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
