"""The timed model of a checkpoint: its dimensions from the architecture that is computed."""

from pathlib import Path

from emulator.compute.architecture import Architecture
from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.registry import family_of
from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.precisions import STORED
from emulator.specs.weight_format import WeightFormat

_BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "float32": 4}


def model_spec(name: str, directory: Path) -> ModelSpec:
    """The model in `directory`, as stored there, by its config.json alone.

    Dense layers are timed before those with experts, wherever they are. Raises CheckpointError for
    what is not computed, and for layers with windows in an order that is not timed.
    """
    config = ConfigReader.of_checkpoint(directory)
    return spec_from_config(name, config)


def spec_from_config(name: str, config: ConfigReader) -> ModelSpec:
    """The same of a parsed config.json."""
    arch = family_of(config).architecture(config)
    window, every = _windows(arch, config)
    method = str(config.section("quantization_config").values.get("quant_method"))
    weight_bytes = _bytes_per_element(config)
    return ModelSpec(
        name=name,
        source=config.path,
        layers=arch.layers,
        hidden=arch.hidden,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        experts=arch.experts,
        experts_per_token=arch.experts_per_token,
        expert_intermediate=arch.expert_intermediate,
        first_dense_layers=len(arch.dense_layers) if arch.experts else 0,
        dense_intermediate=arch.dense_intermediate,
        shared_experts=arch.shared_intermediate // max(1, arch.expert_intermediate),
        vocab=arch.vocab,
        max_context_tokens=arch.max_context_tokens,
        tied_embeddings=arch.tied_embeddings,
        query_key_norms=arch.query_key_norms,
        attention_bias=arch.attention_bias,
        sinks=arch.sinks,
        expert_bias=arch.expert_bias,
        router_bias=_router_bias(arch, weight_bytes),
        window_tokens=window,
        full_attention_every=every,
        latent=arch.latent,
        weight_bytes_per_param=weight_bytes,
        kv_bytes_per_element=weight_bytes,
        stored_projection_format=WeightFormat.FP8_BLOCK128 if method == "fp8" else None,
        stored_expert_format={"fp8": WeightFormat.FP8_BLOCK128, "mxfp4": WeightFormat.MXFP4}.get(
            method
        ),
    )


def check_stored(directory: Path) -> None:
    """Raise ConfigError for a checkpoint that is not computed in the formats it is stored in."""
    if _dtype(ConfigReader.of_checkpoint(directory)) == "float16":
        expected = f"bf16, or none: FP16, as {directory} is stored, is not computed"
        raise ConfigError("quantization", STORED, expected)


def _dtype(config: ConfigReader) -> str:
    return str(config.values.get("dtype") or config.values.get("torch_dtype") or "bfloat16")


def _bytes_per_element(config: ConfigReader) -> int:
    dtype = _dtype(config)
    if dtype not in _BYTES_OF_DTYPE:
        key = "dtype" if config.values.get("dtype") else "torch_dtype"
        raise config.refusal(key, f"must be {', '.join(_BYTES_OF_DTYPE)}")
    return _BYTES_OF_DTYPE[dtype]


def _router_bias(arch: Architecture, weight_bytes: int) -> WeightFormat | None:
    if arch.latent is not None:
        return WeightFormat.FP32  # the bias by which experts are chosen
    if not arch.expert_bias:
        return None
    return WeightFormat.FP32 if weight_bytes == 4 else WeightFormat.BF16


def _windows(arch: Architecture, config: ConfigReader) -> tuple[int, int]:
    """A layer's window, and the number of layers of which the last attends to everything."""
    window = max(arch.windows)
    if not window:
        return 0, 1
    full = [layer for layer, tokens in enumerate(arch.windows) if not tokens]
    every = full[0] + 1 if full else 0
    if not full or full != list(range(every - 1, arch.layers, every)):
        raise config.refusal("layer_types", "must end each period of layers with a full one")
    return window, every
