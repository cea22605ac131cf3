"""Mixtral: eight or so wide experts in every layer, two for a token."""

from emulator.compute.architecture import Architecture
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily, experts_per_token, stored_formats


class Mixtral(ModelFamily):
    """Llama's attention; a sliding window over all layers is refused by name."""

    names = ("MixtralForCausalLM",)
    default_theta = 1e6
    default_norm_eps = 1e-5
    default_kv_heads = 8

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        config.require("sliding_window", ())
        config.require("attention_bias", ())
        stored_formats(config)
        experts = config.whole("num_local_experts")
        return Architecture(
            **self.fields(config),
            experts=experts,
            experts_per_token=experts_per_token(config, experts),
            expert_intermediate=config.whole("intermediate_size"),
        )

    def router_name(self, layer: int) -> str:
        """See `ModelFamily.router_name`."""
        return f"model.layers.{layer}.block_sparse_moe.gate.weight"

    def expert_names(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Gate, up and down are w1, w3 and w2."""
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        return f"{prefix}.w1.weight", f"{prefix}.w3.weight", f"{prefix}.w2.weight"
