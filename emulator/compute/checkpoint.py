"""Reads one chip's heads and experts from a Hugging Face checkpoint, by its model family.

A missing or misshapen tensor is one clear line before serving starts.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from emulator.compute.architecture import Architecture
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily
from emulator.compute.families.registry import FAMILIES, family_of
from emulator.compute.tensors import FileState, Tensors, weight_files
from emulator.compute.weights import (
    DenseWeights,
    ExpertSet,
    LayerWeights,
    ModelShard,
    MoeWeights,
)
from emulator.errors import CheckpointError
from emulator.specs.placement import EMPTY


def read_architecture(directory: Path) -> Architecture:
    """Read `directory`/config.json; raises CheckpointError for anything but a supported variant."""
    return _architecture(ConfigReader.of_checkpoint(directory))


def architecture_from_config(config: Mapping[str, Any], path: str) -> Architecture:
    """Translate a parsed config.json; `path` names it in errors."""
    return _architecture(ConfigReader(config, path))


def _architecture(config: ConfigReader) -> Architecture:
    return family_of(config).architecture(config)


def check_weights(directory: Path) -> Architecture:
    """Check the shapes of all tensors in `directory`, unread; returns the architecture.

    Raises CheckpointError for another architecture, or the first tensor that is missing, misshapen,
    or FP8 without its scales.
    """
    arch = read_architecture(directory)
    _check_shapes(directory, arch, weight_files(directory))
    return arch


@lru_cache(maxsize=16)  # a server checks the same files several times as it starts
def _check_shapes(directory: Path, arch: Architecture, files: tuple[FileState, ...]) -> None:
    del files  # they say when there is something to check again
    family = FAMILIES[arch.family]
    tensors = Tensors(directory, arch.fp8_block)
    tensors.check("model.embed_tokens.weight", (arch.vocab, arch.hidden))
    if not arch.tied_embeddings:
        tensors.check("lm_head.weight", (arch.vocab, arch.hidden))
    for layer in range(arch.layers):
        for name, shape in family.layer_tensors(arch, layer):
            tensors.check(name, shape)
        if layer not in arch.dense_layers:
            family.check_experts(tensors, arch, layer)
    tensors.check("model.norm.weight", (arch.hidden,))


def check_drafts(directory: Path) -> None:
    """Check that the checkpoint in `directory` has a layer that drafts; raises CheckpointError.

    Of several the first drafts, again and again, as in vLLM's runner without Triton
    (`llm_base_proposer.py` passes no `spec_step_idx`); the others are not read.
    """
    arch = read_architecture(directory)
    if not arch.draft_layers:
        raise CheckpointError(
            f"{directory}: {arch.family} with num_nextn_predict_layers={arch.draft_layers}: drafts "
            "by multi-token prediction need a DeepseekV3ForCausalLM checkpoint with such a layer"
        )
    family, tensors = FAMILIES[arch.family], Tensors(directory, arch.fp8_block)
    for name, shape in family.draft_tensors(arch):
        tensors.check(name, shape)
    family.check_experts(tensors, arch, arch.layers)


def load_shard(
    directory: Path,
    arch: Architecture,
    experts: Sequence[Sequence[int]],
    *,
    tp: int = 1,
    tp_index: int = 0,
    mapped: bool = False,
    drafts: bool = False,
) -> ModelShard:
    """Read one chip's share of the heads, and its experts, from `directory`.

    `experts` gives the slots of each layer with experts, equally many, an expert or EMPTY. Of the
    `tp` chips that divide a rank's head groups it is `tp_index`; from `tp` on, it has no heads.
    With `mapped`, matrices stay in the checkpoint's pages, which other processes share; with
    `drafts`, the layer that drafts comes too, with the experts of the last layer's slots.
    Raises CheckpointError for a missing or misshapen tensor.
    """
    groups = arch.groups // tp if tp_index < tp else 0
    assert tp_index >= tp or groups * tp == arch.groups, (arch.groups, tp)
    share = slice(tp_index * groups, (tp_index + 1) * groups)
    family = FAMILIES[arch.family]
    slots_of = dict(zip(arch.expert_layers, experts, strict=True))
    if drafts:
        slots_of[arch.layers] = experts[-1]
    tensors = Tensors(directory, arch.fp8_block, mapped=mapped)
    head = "model.embed_tokens.weight" if arch.tied_embeddings else "lm_head.weight"
    embedding = tensors.embedding("model.embed_tokens.weight", arch.vocab, arch.hidden)
    lm_head = tensors.linear(tensors.rows(head, arch.vocab, arch.hidden))
    return ModelShard(
        architecture=arch,
        groups=groups,
        embedding=embedding,
        layers=tuple(
            _load_layer(family, tensors, arch, layer, slots_of.get(layer), share)
            for layer in range(arch.layers + drafts)
        ),
        final_norm=tensors.read("model.norm.weight", arch.hidden),
        lm_head=lm_head,
        drafts=family.drafts(tensors, arch, embedding, lm_head) if drafts else None,
    )


def _load_layer(
    family: ModelFamily,
    tensors: Tensors,
    arch: Architecture,
    layer: int,
    slots: Sequence[int] | None,
    share: slice,
) -> LayerWeights:
    prefix = f"model.layers.{layer}"
    input_norm = tensors.read(f"{prefix}.input_layernorm.weight", arch.hidden)
    attention = family.attention(tensors, arch, layer, share)
    post_norm = tensors.read(f"{prefix}.post_attention_layernorm.weight", arch.hidden)
    feed_forward: DenseWeights | MoeWeights
    if slots is None:
        feed_forward = family.dense(tensors, arch, layer, share)
    else:
        feed_forward = MoeWeights(
            router=family.router(tensors, arch, layer),
            experts=_load_experts(family, tensors, arch, layer, slots),
            shared=family.shared(tensors, arch, layer) if arch.shared_intermediate else None,
        )
    return LayerWeights(
        input_norm=input_norm,
        attention=attention,
        post_norm=post_norm,
        feed_forward=feed_forward,
    )


def _load_experts(
    family: ModelFamily, tensors: Tensors, arch: Architecture, layer: int, slots: Sequence[int]
) -> ExpertSet:
    """Experts by slot; EMPTY ones are zeros, which take host memory only once written."""
    hidden, width = arch.hidden, arch.expert_intermediate
    experts = ExpertSet(
        gate_up=tensors.empty_linears(len(slots), hidden, 2 * width),
        down=tensors.empty_linears(len(slots), width, hidden),
        biases=np.zeros((len(slots), arch.expert_bias_width), dtype=np.float32),
    )
    for slot, expert in enumerate(slots):
        if expert != EMPTY:
            family.read_expert(tensors, arch, layer, expert, experts, slot)
    return experts


def load_experts(
    directory: Path,
    arch: Architecture,
    moe_layer: int,
    experts: Sequence[int],
    *,
    mapped: bool = False,
) -> ExpertSet:
    """Read `experts`, a slot each, of one layer; `mapped` as in `load_shard`.

    `moe_layer` counts layers with experts, one that drafts too. Raises CheckpointError.
    """
    layer = (*arch.expert_layers, arch.layers)[moe_layer]
    tensors = Tensors(directory, arch.fp8_block, mapped=mapped)
    return _load_experts(FAMILIES[arch.family], tensors, arch, layer, experts)
