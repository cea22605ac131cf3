"""Checkpoints stored in FP8 or MXFP4, for vLLM: a method of no layers and any dtype.

vLLM's own methods ask for 16-bit activations, which its layers need; chips read such checkpoints
themselves (`emulator.compute.tensors`) and compute in float32. vLLM loads `register` as a general
plugin, in each of its processes, before it reads a config.json.
"""

from typing import Any

STORED = "ultraserve-stored"
"""The method's name in vLLM, in place of the one in config.json."""

STORED_METHODS = ("fp8", "mxfp4", "gpt_oss_mxfp4")
"""vLLM's names of the methods whose place it takes."""


def register() -> None:
    """Register the method; idempotent."""
    # vLLM's configs load its platform first, and with it this module.
    import torch
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    class StoredWeights(QuantizationConfig):
        """What vLLM asks of a method; chips have no layers of vLLM's."""

        def get_name(self) -> str:
            """The method's name."""
            return STORED

        def get_supported_act_dtypes(self) -> list[torch.dtype]:
            """What chips compute in."""
            return [torch.float32]

        @classmethod
        def get_min_capability(cls) -> int:
            """Of a GPU: none is needed."""
            return 0

        @staticmethod
        def get_config_filenames() -> list[str]:
            """Files beside config.json: none."""
            return []

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> "StoredWeights":
            """The method of a `quantization_config`, which the chips read."""
            del config
            return cls()

        @classmethod
        def override_quantization_method(
            cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None
        ) -> Any:
            """Take the place of methods that chips read, unless the user names another."""
            del hf_config
            method = hf_quant_cfg.get("quant_method")
            return (
                STORED
                if method in STORED_METHODS and user_quant in (None, method, STORED)
                else None
            )

        def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> None:
            """None: there are no layers."""

    register_quantization_config(STORED)(StoredWeights)
