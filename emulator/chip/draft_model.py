"""A small model beside the served one, whole on a rank's leading chip, that drafts for it.

It has KV of its own in the blocks that the requests have.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Self

import numpy as np

from emulator.chip.guesses import Guesses
from emulator.chip.request_table import RequestTable
from emulator.compute.checkpoint import load_shard, read_architecture
from emulator.compute.decoder import OutputHead, decoder_layers
from emulator.compute.paged_kv import PagedKv
from emulator.compute.stored_weights import maps_weights
from emulator.compute.token_batch import make_token_batch
from emulator.compute.weights import ModelShard
from emulator.compute.whole_model import last_layer
from emulator.formats.model_formats import FP32_MODEL
from emulator.specs.step import RankStep


class DraftModel:
    """Guesses `count` tokens after each text that got one."""

    def __init__(self, shard: ModelShard, kv: PagedKv, *, count: int) -> None:
        self._shard = shard
        self._layers = decoder_layers(shard)
        self._head = OutputHead(shard)
        self._kv = kv
        self._count = count

    @classmethod
    def load(cls, directory: Path, *, count: int, kv_blocks: int, block_tokens: int) -> Self:
        """Read the checkpoint in `directory`, in FP32; raises CheckpointError."""
        arch = read_architecture(directory)
        every_expert = [range(arch.experts)] * len(arch.expert_layers)
        mapped = maps_weights(directory, FP32_MODEL)
        shard = load_shard(directory, arch, every_expert, mapped=mapped)
        kv = PagedKv.of(arch, groups=arch.groups, blocks=kv_blocks, block_tokens=block_tokens)
        return cls(shard, kv, count=count)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of its KV, as the model's is copied."""
        self._kv.copy_block(source, target)

    def draft(
        self, requests: RequestTable, step: RankStep, sampled: Collection[str]
    ) -> dict[str, list[int]]:
        """The guesses after `step`, in which the `sampled` requests have got tokens."""
        block_tokens = self._kv.block_tokens
        guesses = Guesses(
            requests, step, sampled, count=self._count, shift=0, block_tokens=block_tokens
        )
        spans, rows = guesses.first_pass(step.scheduled)
        while spans:
            batch = make_token_batch(spans, block_tokens)
            x = last_layer(self._shard, self._layers, self._kv, batch)
            spans, _ = guesses.take(self._head.logits(x[rows]))
            rows = np.arange(len(spans))
        return guesses.end()
