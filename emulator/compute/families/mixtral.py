"""Mixtral: eight or so wide experts in every layer, two for a token."""

from emulator.compute.architecture import Architecture
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily


class Mixtral(ModelFamily):
    """Llama's attention; a sliding window over all layers is refused by name."""

    names = ("MixtralForCausalLM",)

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        config.require("sliding_window", ())
        config.require("attention_bias", ())
        config.require("quantization_config", ())
        return Architecture(
            **self.fields(config),
            experts=config.whole("num_local_experts"),
            experts_per_token=config.whole("num_experts_per_tok"),
            expert_intermediate=config.whole("intermediate_size"),
        )

    def router_name(self, layer: int) -> str:
        """See `ModelFamily.router_name`."""
        return f"model.layers.{layer}.block_sparse_moe.gate.weight"

    def expert_names(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Gate, up and down are w1, w3 and w2."""
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        return f"{prefix}.w1.weight", f"{prefix}.w3.weight", f"{prefix}.w2.weight"
