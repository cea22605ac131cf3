"""gpt-oss: attention sinks, every other layer with a window, biased experts, stored in MXFP4."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from emulator.compute.architecture import Architecture, SwiGlu
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.family import ModelFamily, Named, experts_per_token, stored_formats
from emulator.compute.rope_settings import RopeSettings
from emulator.compute.tensors import Tensors
from emulator.compute.weights import ExpertSet, RouterWeights

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""transformers' default where config.json has no rotary settings but perhaps `rope_theta`."""


class GptOss(ModelFamily):
    """Experts' gate and up columns alternate in the checkpoint; all experts are in one tensor."""

    names = ("GptOssForCausalLM",)
    default_theta = 150_000.0
    default_norm_eps = 1e-5
    default_head_dim = 64
    default_kv_heads = 8

    def architecture(self, config: ConfigReader) -> Architecture:
        """See `ModelFamily.architecture`."""
        stored = stored_formats(config, "mxfp4")
        fields = self.fields(config)
        fields["windows"] = self._windows(config, fields["layers"])
        experts = config.whole("num_local_experts")
        return Architecture(
            **fields,
            attention_bias=config.flag("attention_bias", default=True),
            sinks=True,
            experts=experts,
            experts_per_token=experts_per_token(config, experts),
            expert_intermediate=config.whole("intermediate_size"),
            expert_bias=True,
            mxfp4_experts=stored.values.get("quant_method") == "mxfp4",
            gate=SwiGlu(
                alpha=config.real("swiglu_alpha", default=1.702),
                shift=1.0,
                limit=config.real("swiglu_limit", default=7.0),
            ),
        )

    def rope(self, config: ConfigReader) -> RopeSettings:
        """See `ModelFamily.rope`."""
        if config.values.get("rope_parameters") is None and not config.values.get("rope_scaling"):
            config = ConfigReader({**config.values, "rope_parameters": _ROPE}, config.path)
        return super().rope(config)

    def _windows(self, config: ConfigReader, layers: int) -> tuple[int, ...]:
        kinds = config.values.get("layer_types")
        if kinds is None:
            kinds = ["full_attention" if n % 2 else "sliding_attention" for n in range(layers)]
        known = {
            "full_attention": 0,
            "sliding_attention": config.whole("sliding_window", default=128),
        }
        if len(kinds) != layers or any(kind not in tuple(known) for kind in kinds):
            raise config.refusal("layer_types", f"must be {layers} of {' or '.join(known)}")
        return tuple(known[kind] for kind in kinds)

    def layer_tensors(self, arch: Architecture, layer: int) -> Named:
        """See `ModelFamily.layer_tensors`; the router has a bias."""
        yield from super().layer_tensors(arch, layer)
        yield f"model.layers.{layer}.mlp.router.bias", (arch.experts,)

    def router_name(self, layer: int) -> str:
        """See `ModelFamily.router_name`."""
        return f"model.layers.{layer}.mlp.router.weight"

    def router(self, tensors: Tensors, arch: Architecture, layer: int) -> RouterWeights:
        """See `ModelFamily.router`."""
        bias = tensors.read(f"model.layers.{layer}.mlp.router.bias", arch.experts)
        return replace(super().router(tensors, arch, layer), bias=bias)

    def check_experts(self, tensors: Tensors, arch: Architecture, layer: int) -> None:
        """See `ModelFamily.check_experts`; matrices are MXFP4, or plain [inputs, outputs]."""
        for name, inputs, outputs in _matrices(arch, layer):
            tensors.check(f"{name}_bias", (arch.experts, outputs))
            if arch.mxfp4_experts:
                tensors.check_mxfp4(name, arch.experts, outputs, inputs)
            else:
                tensors.refuse_mxfp4(name)
                tensors.check(name, (arch.experts, inputs, outputs))

    def read_expert(
        self,
        tensors: Tensors,
        arch: Architecture,
        layer: int,
        expert: int,
        into: ExpertSet,
        slot: int,
    ) -> None:
        """See `ModelFamily.read_expert`."""
        width = 2 * arch.expert_intermediate
        matrices, biases = [], []  # [outputs, inputs]
        for name, inputs, outputs in _matrices(arch, layer):
            if arch.mxfp4_experts:
                matrices.append(tensors.mxfp4(name, expert, arch.experts, outputs, inputs))
            else:
                stored = tensors.rows(name, arch.experts, inputs, outputs)
                matrices.append(stored[expert].T)
            bias = tensors.check(f"{name}_bias", (arch.experts, outputs))
            biases.append(np.asarray(bias[expert], dtype=np.float32))
        both, down = matrices
        into.gate_up[slot] = tensors.linear(both[::2], both[1::2])
        into.down[slot] = tensors.linear(down)
        into.biases[slot, :width] = np.concatenate([biases[0][::2], biases[0][1::2]])
        into.biases[slot, width:] = biases[1]


def _matrices(arch: Architecture, layer: int) -> Iterator[tuple[str, int, int]]:
    """Name, inputs and outputs."""
    prefix = f"model.layers.{layer}.mlp.experts"
    yield f"{prefix}.gate_up_proj", arch.hidden, 2 * arch.expert_intermediate
    yield f"{prefix}.down_proj", arch.expert_intermediate, arch.hidden
