"""A whole model in this process: the logits of texts, with the bits that chips compute."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from emulator.arrays import Float32s, Int64s
from emulator.compute.checkpoint import load_shard, read_architecture
from emulator.compute.decoder import (
    DecoderLayer,
    Joined,
    OutputHead,
    add_up,
    batch_rotation,
    decoder_layers,
    embed,
)
from emulator.compute.host_memory import host_need
from emulator.compute.paged_kv import PagedKv
from emulator.compute.stored_weights import maps_weights, store_shard
from emulator.compute.token_batch import Span, TokenBatch, make_token_batch
from emulator.compute.weights import ModelShard
from emulator.formats.model_formats import ModelFormats

_BLOCK_TOKENS: Final = 128
_LOGITS_AT_ONCE: Final = 1 << 26
"""Most logits that are held: 256 MiB of float32."""


class WholeModel:
    """The model in `directory` in `formats`; raises CheckpointError as chips do, also without the
    host memory for it.
    """

    def __init__(self, directory: Path, formats: ModelFormats) -> None:
        arch = read_architecture(directory)
        every_expert = [range(arch.experts)] * len(arch.expert_layers)
        need = host_need(directory, chips=1, tp=1, slots=arch.experts, formats=formats)
        need.check(psutil.virtual_memory().available)
        mapped = maps_weights(directory, formats)
        shard = load_shard(directory, arch, every_expert, mapped=mapped)
        self._shard: ModelShard = store_shard(shard, formats)
        self._layers = decoder_layers(self._shard)
        self._head = OutputHead(self._shard)

    def logits(self, texts: Int64s) -> Iterator[Float32s]:
        """Of each of `texts` [texts, tokens], in order: [tokens, vocab], each beside its last
        token's successor.
        """
        tokens = texts.shape[1]
        at_once = max(1, _LOGITS_AT_ONCE // (tokens * self._shard.architecture.vocab))
        for first in range(0, len(texts), at_once):
            part = texts[first : first + at_once]
            scores = self._head.logits(self._last_layer(part))
            yield from scores.reshape(len(part), tokens, -1)

    def _last_layer(self, texts: Int64s) -> Float32s:
        """[texts * tokens, hidden]."""
        blocks = -(-texts.shape[1] // _BLOCK_TOKENS)
        batch = make_token_batch(
            [
                Span(
                    token_ids=text.astype(np.int32),
                    first_position=0,
                    block_table=range(1 + index * blocks, 1 + (index + 1) * blocks),
                )
                for index, text in enumerate(texts)
            ],
            _BLOCK_TOKENS,
        )
        kv = PagedKv.of(
            self._shard.architecture,
            groups=self._shard.groups,
            blocks=1 + len(texts) * blocks,
            block_tokens=_BLOCK_TOKENS,
            formats=self._shard.formats,
        )
        return last_layer(self._shard, self._layers, kv, batch)


def last_layer(
    shard: ModelShard, layers: Sequence[DecoderLayer], kv: PagedKv, batch: TokenBatch
) -> Float32s:
    """The output [tokens, hidden] of the last of the `layers` of a whole model; writes `kv`."""
    angles = batch_rotation(shard, batch)
    x = embed(shard, batch)
    for layer in layers:
        joined = layer.add_attention(x, layer.attend(kv, x, batch, angles))
        if layer.has_experts:
            x = _through_experts(layer, joined, shard.architecture.experts)
        else:
            x = add_up(joined.residual, layer.run_dense_part(joined))
    return x


def _through_experts(layer: DecoderLayer, joined: Joined, experts: int) -> Float32s:
    routed = layer.route(joined)
    chosen = routed.chosen.ravel()  # [pairs]
    by_expert = np.argsort(chosen, kind="stable")
    answers = np.empty((len(chosen), joined.hidden.shape[1]), dtype=np.float32)
    answers[by_expert] = layer.run_experts(
        joined.hidden,
        by_expert // routed.chosen.shape[1],
        np.bincount(chosen, minlength=experts),
    )
    # [tokens, k, hidden]
    return layer.combine(routed, answers.reshape(*routed.chosen.shape, -1))
