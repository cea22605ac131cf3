"""vLLM's platform for emulated Trainium3 chips.

Sets executor, scheduler and their settings, and refuses unsupported features by name at start. It
never poses as CUDA.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm.platforms.interface import Platform, PlatformEnum
from vllm.v1.metrics.buckets import BucketFamilyKey, histogram_buckets

from emulator.specs.systems import system_by_name
from serving.engine.deployment import Deployment, resolve_deployment, with_drafts
from serving.engine.drafting import DraftBy
from serving.errors import UnsupportedFlag
from serving.plugin.stored_weights import STORED, STORED_METHODS
from serving.process.api_processes import ApiProcesses
from serving.process.start_signals import keep_ending_start_on_signals
from serving.settings import Settings
from serving.traffic.engine_limits import SchedulerLimits

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NIXL: Final = "NixlConnector"
"""vLLM's connector between engines whose protocol is spoken."""

_STEPS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075),
    *(0.001, 0.00125, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.0075),
)
"""A decode step of a large model on 144 chips takes 1 to 20 ms; of a small one 0.1 ms."""

_ADDED_S: Final[Mapping[BucketFamilyKey, tuple[float, ...]]] = {
    "inter_token_latency": (*_STEPS_S, 0.015, 0.02, 0.03, 0.04),
    "time_to_first_token": (0.0002, 0.0005, 0.002, 0.003, 0.0075, 0.015, 0.03, 0.15, 0.2),
    "request_latency": (
        *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    ),
}


def fine_buckets(given: Mapping[str, list[float]] | None) -> dict[str, list[float]]:
    """Bounds in seconds by vLLM's bucket family: the user's, else ours."""
    fine = {
        family: sorted({*added, *histogram_buckets(family)}) for family, added in _ADDED_S.items()
    }
    return fine | dict(given or {})


_EXECUTOR = "serving.plugin.executor.UltraServeExecutor"
_SCHEDULER = "serving.plugin.lockstep_scheduler.LockstepScheduler"
_FAST_EXECUTOR = "serving.plugin.fast_executor.FastExecutor"
_FAST_SCHEDULER = "serving.plugin.fast_scheduler.FastScheduler"
_WORKER = "serving.plugin.executor.NoWorker"

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

MAX_BLOCK_TOKENS = 128
"""The chips read contexts in chunks of this many tokens, which hold whole blocks."""


class UltraServePlatform(Platform):
    """Trainium3, out of tree. vLLM's own tensors stay on the CPU."""

    _enum = PlatformEnum.OOT
    device_name = "trainium3"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    _is_fast = False
    """Whether this process' engine is the fast one: vLLM's checks of requests have no config."""

    _kv_role: str | None = None
    """vLLM's role of this process' engine, likewise."""

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtype that the chips compute tokens in."""
        return [torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The chip's name."""
        return f"trainium3 (emulated) {device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """HBM bytes of a chip of the default system."""
        del device_id
        return system_by_name(Settings().system).chip.hbm_bytes

    def is_cpu(self) -> bool:
        """True: vLLM's tensors are on the CPU; torch has no accelerator cache to empty."""
        return True

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """False: there is no device memory of vLLM's."""
        return False

    @classmethod
    def import_kernels(cls) -> None:
        """Do nothing: vLLM's kernels are not installed, and it would warn."""

    @classmethod
    def inference_mode(cls) -> Any:
        """The no-grad context of torch."""
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Do nothing: chips are not torch devices."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse sampling parameters that are not computed; raises ValueError (HTTP 400)."""
        # vLLM's config, which sampling parameters need, imports this file.
        from serving.plugin.fast_limits import refuse_parameters
        from serving.plugin.kv_transfer_params import KEY, check_params
        from serving.plugin.requests import refuse_request

        del processed_inputs
        refuse_request(params)
        check_params((params.extra_args or {}).get(KEY), cls._kv_role)
        if cls._is_fast:
            refuse_parameters(params)

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Refuse all methods but what checkpoints are stored in; raises UnsupportedFlag."""
        if quant != STORED:
            # Of such a checkpoint it is asked only where the installation lacks `stored_weights`.
            stored = "; a checkpoint stored so is read after `make install`"
            raise UnsupportedFlag(
                flag=f"--quantization {quant}",
                reason="vLLM's own quantized layers are not computed; use `ultraserve serve`, "
                "which reads this flag itself, or "
                '--additional-config \'{"ultraserve": {"quantization": NAME}}\''
                + (stored if quant in STORED_METHODS else ""),
            )

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Resolve the deployment, set executor and scheduler; raises UltraServeError, one line."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        if vllm_config.model_config is None:
            return
        refuse_features(vllm_config)
        deployment = deployment_of(vllm_config)
        # A model that does not fit is refused here, before a process is started for it.
        deployment.machine(vllm_config.cache_config.gpu_memory_utilization)
        keep_ending_start_on_signals()
        cls._is_fast = deployment.settings.engine == "fast"
        _configure_engine(vllm_config, is_fast=cls._is_fast)
        cls._kv_role = _exchange_role(vllm_config)
        _configure_context(vllm_config, deployment)
        observability = vllm_config.observability_config
        observability.custom_histogram_buckets = fine_buckets(
            observability.custom_histogram_buckets
        )

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: "VllmConfig") -> None:
        """Keep the block size."""


def deployment_of(vllm_config: "VllmConfig") -> Deployment:
    """Resolve the deployment of an engine's config."""
    settings = _settings_of(vllm_config)
    deployment = resolve_deployment(settings, Path(vllm_config.model_config.model))
    speculative = vllm_config.speculative_config
    if speculative is None:
        return deployment
    assert speculative.method is not None
    method, tokens = speculative.method, speculative.num_speculative_tokens
    return with_drafts(deployment, method, tokens, speculative.model)


def _settings_of(vllm_config: "VllmConfig") -> Settings:
    additional = vllm_config.additional_config
    return Settings.from_additional_config(additional if isinstance(additional, dict) else {})


def refuse_features(vllm_config: "VllmConfig") -> None:
    """Raise UnsupportedFlag for the first requested feature that is unsupported."""
    for flag, asked, reason in _FEATURES:
        if asked(vllm_config):
            raise UnsupportedFlag(flag=flag, reason=reason)


_ONE_ENGINE = (
    "vLLM would start one engine per rank; use `ultraserve serve`, which reads this flag itself, "
    'or --additional-config \'{"ultraserve": {"chips": N}}\''
)
_ONE_WORKER = (
    "vLLM would look for one worker per chip; use `ultraserve serve`, which reads this flag "
    'itself, or --additional-config \'{"ultraserve": {"tp": N}}\''
)

_FEATURES: tuple[tuple[str, Callable[["VllmConfig"], bool], str], ...] = (
    ("--data-parallel-size", lambda c: c.parallel_config.data_parallel_size > 1, _ONE_ENGINE),
    (
        "--api-server-count",
        lambda c: (
            c.parallel_config._api_process_count > 1
            and ApiProcesses.from_environment(os.environ) is None
        ),
        "of several API processes one has admission and the metrics: use `ultraserve serve`, which "
        "reads this flag itself",
    ),
    (
        "--tensor-parallel-size",
        lambda c: c.parallel_config.tensor_parallel_size > 1,
        _ONE_WORKER,
    ),
    (
        "--pipeline-parallel-size",
        lambda c: c.parallel_config.pipeline_parallel_size > 1,
        "layers are not split over chips on this platform",
    ),
    ("--enable-lora", lambda c: c.lora_config is not None, "LoRA adapters are not computed"),
    (
        "--speculative-config",
        lambda c: (
            c.speculative_config is not None and c.speculative_config.method not in list(DraftBy)
        ),
        f"of its methods {', '.join(DraftBy)} are computed alone",
    ),
    (
        "--speculative-config",
        lambda c: c.speculative_config is not None and bool(_settings_of(c).prefill_ranks),
        "drafts are not verified beside --prefill-ranks",
    ),
    (
        "--dtype",
        lambda c: c.model_config.dtype is not torch.float32,
        "tokens are computed in float32, or in the formats of --quantization",
    ),
    (
        "--kv-cache-dtype",
        lambda c: c.cache_config.cache_dtype not in ("auto", "float32"),
        "use `ultraserve serve`, which reads this flag itself, or "
        '--additional-config \'{"ultraserve": {"kv_cache_dtype": "fp8"}}\'',
    ),
    (
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config is not None and c.kv_transfer_config.kv_connector != NIXL,
        f"of its connectors {NIXL} is spoken alone",
    ),
    (
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config is not None and bool(_settings_of(c).prefill_ranks),
        "KV moves between engines, or with --prefill-ranks between the ranks of one",
    ),
    (
        "--speculative-config",
        lambda c: c.speculative_config is not None and c.kv_transfer_config is not None,
        "drafts are not verified beside --kv-transfer-config",
    ),
    (
        # vLLM makes a transfer config of it after this look.
        "--kv-offloading-size",
        lambda c: c.cache_config.kv_offloading_size is not None,
        "KV stays in the chips' HBM",
    ),
    (
        "--ec-transfer-config",
        lambda c: c.ec_transfer_config is not None,
        "there are no encoders, and so no encoder caches to move",
    ),
    (
        "--cpu-offload-gb",
        lambda c: c.offload_config.uva.cpu_offload_gb > 0,
        "weights stay in the chips' HBM",
    ),
    (
        "--runner pooling",
        lambda c: c.model_config.runner_type != "generate",
        "embedding, scoring and pooling models are not computed; only text generation is",
    ),
    (
        "--hf-overrides",
        lambda c: bool(c.model_config.hf_overrides),
        "the chips read config.json as it is",
    ),
    (
        "--logprobs-mode",
        lambda c: str(c.model_config.logprobs_mode) != "raw_logprobs",
        "log-probabilities are those of the raw logits",
    ),
    (
        "--enable-return-routed-experts",
        lambda c: c.aux_output_config.enable_return_routed_experts,
        "the chips do not report which experts they chose",
    ),
    (
        "--logits-processors",
        lambda c: bool(c.model_config.logits_processors),
        "logits live on the chips, custom processors cannot reach them",
    ),
    (
        "--enable-prompt-embeds",
        lambda c: c.model_config.enable_prompt_embeds,
        "prompts are tokens on this platform",
    ),
)


def _configure_engine(vllm_config: "VllmConfig", *, is_fast: bool) -> None:
    if is_fast:
        from serving.plugin.fast_limits import refuse_flags

        refuse_flags(vllm_config)
    parallel = vllm_config.parallel_config
    parallel.distributed_executor_backend = _FAST_EXECUTOR if is_fast else _EXECUTOR
    parallel.worker_cls = _WORKER
    scheduler = vllm_config.scheduler_config
    scheduler.scheduler_cls = _FAST_SCHEDULER if is_fast else _SCHEDULER
    scheduler.async_scheduling = False
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size:
        cache.block_size = SchedulerLimits.block_tokens
    if cache.block_size & (cache.block_size - 1) or cache.block_size > MAX_BLOCK_TOKENS:
        raise UnsupportedFlag(
            flag=f"--block-size {cache.block_size}",
            reason=f"expected a power of two up to {MAX_BLOCK_TOKENS}",
        )


def _exchange_role(vllm_config: "VllmConfig") -> str | None:
    """The engine's role among those that exchange KV, whose settings are checked; None without."""
    from serving.plugin.kv_exchange import exchange_settings

    config = vllm_config.kv_transfer_config
    if config is None:
        return None
    exchange_settings(vllm_config)
    return str(config.kv_role)


def _configure_context(vllm_config: "VllmConfig", deployment: Deployment) -> None:
    """Bound the context by the timed model's: cut a derived length, refuse a user's longer one."""
    model_config = vllm_config.model_config
    limit = deployment.time_model.max_context_tokens
    given = model_config.original_max_model_len
    if given is not None and given > limit:
        raise UnsupportedFlag(
            flag=f"--max-model-len {given}",
            reason=f"expected at most {limit}, the context of {deployment.time_model.name}",
        )
    model_config.max_model_len = min(model_config.max_model_len, limit)
