"""Llama 3: dense layers, grouped-query attention, scaled RoPE."""

from emulator.compute.architecture import Architecture
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily, stored_formats


class Llama(ModelFamily):
    """The base without additions; biases are refused by name."""

    names = ("LlamaForCausalLM",)

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        config.require("attention_bias", ())
        config.require("mlp_bias", ())
        stored_formats(config)
        fields = self.fields(config)
        return Architecture(**fields, **self.dense_fields(config, range(fields["layers"])))
