"""Qwen3, dense and mixture of experts: queries and keys are normalised, head by head."""

from typing import Any, ClassVar

from emulator.compute.architecture import Architecture, Routing
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily, experts_per_token, stored_formats


class Qwen3(ModelFamily):
    """Dense layers alone."""

    names = ("Qwen3ForCausalLM",)
    default_head_dim: ClassVar[int | None] = 128
    default_kv_heads = 32

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        fields = self.fields(config)
        return Architecture(**fields, **self.dense_fields(config, range(fields["layers"])))

    def fields(self, config: ConfigReader) -> dict[str, Any]:
        """See `ModelFamily.fields`; biases and sliding windows are refused by name."""
        for key in ("attention_bias", "use_sliding_window"):
            config.require(key, ())
        stored_formats(config)
        return super().fields(config) | {"query_key_norms": True}


class Qwen3Moe(Qwen3):
    """Experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""

    names = ("Qwen3MoeForCausalLM",)
    default_head_dim = None
    default_kv_heads = 4

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        fields = self.fields(config)
        layers = fields["layers"]
        step = config.whole("decoder_sparse_step", default=1)
        named = config.values.get("mlp_only_layers") or []
        are_places = isinstance(named, list) and all(type(n) is int for n in named)
        if not are_places or not set(named) <= set(range(layers)):
            raise config.refusal("mlp_only_layers", f"must be layers from 0 to {layers - 1}")
        dense = tuple(n for n in range(layers) if n in named or (n + 1) % step)
        if len(dense) == layers:
            key = "mlp_only_layers" if named else "decoder_sparse_step"
            raise config.refusal(key, "must leave a layer with experts")
        spellings = ("num_experts", "num_local_experts")
        key = next((key for key in spellings if key in config.values), spellings[0])
        experts = config.whole(key)
        fields |= self.dense_fields(config, dense) | {
            "experts": experts,
            "experts_per_token": experts_per_token(config, experts),
            "expert_intermediate": config.whole("moe_intermediate_size"),
            "routing": Routing(normalise=config.flag("norm_topk_prob")),
        }
        return Architecture(**fields)
