"""DeepSeek-V3 and R1, and Kimi-K2: latent attention, experts in groups, a shared expert, FP8."""

import math
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from emulator.compute.architecture import Architecture, RouterScore, Routing
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import (
    ModelFamily,
    Named,
    experts_per_token,
    network_tensors,
    stored_formats,
)
from emulator.compute.mapped_matrix import Matrix
from emulator.compute.tensors import Tensors
from emulator.compute.weights import DraftWeights, LatentWeights, RouterWeights
from emulator.specs.latent_attention import LatentAttention


class DeepseekV3(ModelFamily):
    """A layer of multi-token prediction, the last of a checkpoint, is computed for drafts alone."""

    names = ("DeepseekV3ForCausalLM",)

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        for key in ("attention_bias", "mlp_bias"):
            config.require(key, ())
        config.require("scoring_func", ("sigmoid",))
        config.require("topk_method", ("noaux_tc",))
        config.require("moe_layer_freq", (1,))
        if config.values.get("rope_interleave", True) is not True:
            raise config.refusal("rope_interleave", "must be true to be computed here")
        fields = self.fields(config)
        layers, experts = fields["layers"], config.whole("n_routed_experts")
        groups = config.whole("n_group", default=8)
        if experts % groups or experts // groups < 2:
            raise config.refusal("n_group", f"must divide {experts} experts in groups of 2 or more")
        groups_chosen = config.whole("topk_group", default=4)
        if groups_chosen > groups:
            raise config.refusal("topk_group", f"must be at most n_group={groups}")
        dense = config.whole("first_k_dense_replace", default=3, least=0)
        if dense >= layers:
            wanted = f"must leave one of the {layers} layers with experts"
            raise config.refusal("first_k_dense_replace", wanted)
        drafts = config.whole("num_nextn_predict_layers", default=1, least=0)
        fields |= {"draft_layers": drafts, "windows": (0,) * (layers + drafts)}
        width = config.whole("moe_intermediate_size")
        fields["routing"] = Routing(
            score=RouterScore.SIGMOID,
            normalise=config.flag("norm_topk_prob", default=True),
            groups=groups,
            groups_chosen=groups_chosen,
            scale=config.real("routed_scaling_factor", default=2.5),
        )
        return Architecture(
            **fields,
            **self.dense_fields(config, range(dense)),
            experts=experts,
            experts_per_token=experts_per_token(config, groups_chosen * experts // groups),
            expert_intermediate=width,
            shared_intermediate=width * config.whole("n_shared_experts", default=1),
            fp8_block=_fp8_block(config),
        )

    def head_fields(self, config: ConfigReader) -> dict[str, Any]:
        """See `ModelFamily.head_fields`; every head has keys and values, from the latent."""
        if config.values.get("q_lora_rank", 0) is None:
            raise config.refusal("q_lora_rank", "a query of full rank is not computed here")
        latent = LatentAttention(
            query_rank=config.whole("q_lora_rank"),
            kv_rank=config.whole("kv_lora_rank"),
            nope_dim=config.whole("qk_nope_head_dim"),
            rope_dim=config.whole("qk_rope_head_dim"),
            value_dim=config.whole("v_head_dim"),
        )
        scale = latent.query_width_per_head**-0.5
        key = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
        rope, scaling = config.section(key), self.rope(config).scaling
        if scaling is not None and rope.values.get("mscale_all_dim"):
            growth = 0.1 * rope.real("mscale_all_dim", default=0.0) * math.log(scaling.factor)
            scale *= (growth + 1.0) ** 2
        heads = config.whole("num_attention_heads")
        return {
            "heads": heads,
            "kv_heads": heads,
            "head_dim": latent.value_dim,
            "latent": latent,
            "score_scale": scale,
        }

    def layer_tensors(self, arch: Architecture, layer: int) -> Named:
        """See `ModelFamily.layer_tensors`; with the router's bias and the shared expert."""
        yield from super().layer_tensors(arch, layer)
        if layer not in arch.dense_layers:
            prefix = f"model.layers.{layer}.mlp"
            yield f"{prefix}.gate.e_score_correction_bias", (arch.experts,)
            yield from network_tensors(
                f"{prefix}.shared_experts", arch.shared_intermediate, arch.hidden
            )

    def attention_tensors(self, arch: Architecture, prefix: str) -> Named:
        """See `ModelFamily.attention_tensors`."""
        latent = arch.latent
        assert latent is not None, arch.family
        queries = arch.heads * latent.query_width_per_head
        yield f"{prefix}.q_a_proj.weight", (latent.query_rank, arch.hidden)
        yield f"{prefix}.q_a_layernorm.weight", (latent.query_rank,)
        yield f"{prefix}.q_b_proj.weight", (queries, latent.query_rank)
        yield f"{prefix}.kv_a_proj_with_mqa.weight", (latent.cached_width, arch.hidden)
        yield f"{prefix}.kv_a_layernorm.weight", (latent.kv_rank,)
        yield f"{prefix}.kv_b_proj.weight", (arch.heads * latent.up_width_per_head, latent.kv_rank)
        yield f"{prefix}.o_proj.weight", (arch.hidden, arch.heads * latent.value_dim)

    def attention(
        self, tensors: Tensors, arch: Architecture, layer: int, share: slice
    ) -> LatentWeights:
        """See `ModelFamily.attention`; rotary rows, stored in pairs, are laid out in halves."""
        latent = arch.latent
        assert latent is not None, arch.family
        named = self.attention_tensors(arch, f"model.layers.{layer}.self_attn")
        read = [tensors.rows(name, *shape) for name, shape in named]
        query_down, query_norm, query_up, kv_down, kv_norm, kv_up, output = read
        width = latent.query_width_per_head
        queries = query_up.reshape(arch.groups, -1, width, latent.query_rank)[share]
        query_rows = [
            queries[:, head, rows]
            for head in range(arch.heads // arch.groups)
            for rows in _halves(latent.nope_dim)
        ]
        up = kv_up.reshape(arch.groups, -1, latent.up_width_per_head, latent.kv_rank)[share]
        up = up.reshape(-1, latent.up_width_per_head, latent.kv_rank)  # [heads of the chip, ...]
        outputs = output.reshape(arch.hidden, arch.groups, -1).transpose(1, 0, 2)
        return LatentWeights(
            query_down=tensors.linear(query_down),
            query_norm=query_norm,
            query_up=tensors.linears(*query_rows),
            kv_down=tensors.linear(*(kv_down[rows] for rows in _halves(latent.kv_rank))),
            kv_norm=kv_norm,
            key_up=tensors.linears(up[:, : latent.nope_dim].transpose(0, 2, 1)),
            value_up=tensors.linears(up[:, latent.nope_dim :]),
            output=tensors.linears(outputs[share]),
        )

    def draft_tensors(self, arch: Architecture) -> Named:
        """See `ModelFamily.draft_tensors`; embedding and head are the model's, if not stored."""
        prefix = f"model.layers.{arch.layers}"
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{prefix}.{norm}.weight", (arch.hidden,)
        yield f"{prefix}.eh_proj.weight", (arch.hidden, 2 * arch.hidden)
        yield from self.layer_tensors(arch, arch.layers)

    def drafts(
        self, tensors: Tensors, arch: Architecture, embedding: NDArray[Any], lm_head: Matrix
    ) -> DraftWeights:
        """See `ModelFamily.drafts`."""
        prefix, hidden = f"model.layers.{arch.layers}", arch.hidden
        head, tokens = f"{prefix}.shared_head.head.weight", f"{prefix}.embed_tokens.weight"
        if tokens in tensors:
            embedding = tensors.embedding(tokens, arch.vocab, hidden)
        if head in tensors:
            lm_head = tensors.linear(tensors.rows(head, arch.vocab, hidden))
        return DraftWeights(
            token_norm=tensors.read(f"{prefix}.enorm.weight", hidden),
            hidden_norm=tensors.read(f"{prefix}.hnorm.weight", hidden),
            joining=tensors.linear(tensors.rows(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)),
            embedding=embedding,
            final_norm=tensors.read(f"{prefix}.shared_head.norm.weight", hidden),
            lm_head=lm_head,
        )

    def router(self, tensors: Tensors, arch: Architecture, layer: int) -> RouterWeights:
        """See `ModelFamily.router`."""
        bias = tensors.read(f"model.layers.{layer}.mlp.gate.e_score_correction_bias", arch.experts)
        return replace(super().router(tensors, arch, layer), choice_bias=bias)


def _halves(plain: int) -> tuple[slice, slice, slice]:
    """Plain rows, then the first of each rotary pair, then the second."""
    return slice(plain), slice(plain, None, 2), slice(plain + 1, None, 2)


def _fp8_block(config: ConfigReader) -> tuple[int, int] | None:
    stored = stored_formats(config, "fp8")
    if not stored.values:
        return None
    stored.require("fmt", ("e4m3",))
    block = stored.values.get("weight_block_size")
    if (
        not isinstance(block, list)
        or [type(side) for side in block] != [int, int]
        or min(block) < 1
    ):
        raise stored.refusal("weight_block_size", "must be two whole numbers above 0")
    return block[0], block[1]
