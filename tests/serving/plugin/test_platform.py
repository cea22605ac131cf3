"""What the platform refuses, by name and before anything is started; and what it sets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.platforms import current_platform

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError, ConfigError, HbmExhausted
from serving.errors import UnsupportedFlag
from serving.plugin import platform
from serving.plugin.platform import UltraServePlatform, deployment_of
from serving.plugin.register import platform as entry_point
from serving.traffic.engine_limits import HBM_SHARE, SchedulerLimits
from tests.serving.plugin.engine_config import config_from_flags, engine_config

KV_TRANSFER = json.dumps({"kv_connector": "ExampleConnector", "kv_role": "kv_both"})
EC_TRANSFER = json.dumps({"ec_connector": "ExampleConnector", "ec_role": "ec_both"})

NGRAMS = json.dumps({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})

REFUSED: dict[str, list[str]] = {
    "--data-parallel-size": ["2"],
    "--tensor-parallel-size": ["2"],
    "--pipeline-parallel-size": ["2"],
    "--enable-lora": [],
    "--speculative-config": [
        '{"method": "ngram_gpu", "num_speculative_tokens": 2, "prompt_lookup_max": 3}'
    ],
    "--dtype": ["bfloat16"],
    "--kv-cache-dtype": ["fp8"],
    "--kv-transfer-config": [KV_TRANSFER],
    "--kv-offloading-size": ["2"],
    "--ec-transfer-config": [EC_TRANSFER],
    "--cpu-offload-gb": ["2"],
    "--runner": ["pooling"],
    "--logprobs-mode": ["processed_logprobs"],
    "--enable-return-routed-experts": [],
    "--logits-processors": ["a.module:Processor"],
    "--enable-prompt-embeds": [],
    "--hf-overrides": ['{"num_hidden_layers": 2}'],
}
# No flag of an engine: `vllm serve` reads it and tells each API process of the others.
OF_THE_SERVER = {"--api-server-count"}


def refusal(*flags: str) -> str:
    with pytest.raises(UnsupportedFlag) as raised:
        config_from_flags(*flags)
    return str(raised.value)


@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_that_is_not_for_this_platform_is_refused_in_one_line_that_names_it(
    flag: str,
) -> None:
    text = refusal(flag, *REFUSED[flag])

    assert re.match(rf"{flag}\b.*: .{{10,}}", text)
    assert "\n" not in text


def test_every_refusal_of_the_platform_is_among_those_tried() -> None:
    flags = {flag.split()[0] for flag, _, _ in platform._FEATURES}

    assert flags == REFUSED.keys() | OF_THE_SERVER


def test_two_api_servers_are_refused() -> None:
    config = engine_config()
    config.parallel_config._api_process_count = 2

    with pytest.raises(UnsupportedFlag, match=r"^--api-server-count: of several API processes"):
        platform.refuse_features(config)


@pytest.mark.parametrize("method", ["fp8", "awq", "mxfp4", "experts_int8", "torchao"])
def test_every_quantization_is_refused_by_name(method: str) -> None:
    assert refusal("--quantization", method).startswith(f"--quantization {method}: ")


def test_drafts_without_weights_are_refused() -> None:
    nothing = json.dumps({"ultraserve": {"computes": False}})

    text = refusal("--speculative-config", NGRAMS, "--additional-config", nothing)

    assert text.startswith("--speculative-config: made-up tokens follow no n-gram")


def test_drafts_beside_ranks_that_prefill_are_refused() -> None:
    roles = json.dumps({"ultraserve": {"chips": 2, "prefill_ranks": 1}})
    text = refusal("--speculative-config", NGRAMS, "--additional-config", roles)

    assert text == "--speculative-config: drafts are not verified beside --prefill-ranks"


def exchange(**more: object) -> str:
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"} | more)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--additional-config", '{"ultraserve": {"chips": 2, "prefill_ranks": 1}}'],
            "--kv-transfer-config: KV moves between engines, or with --prefill-ranks",
        ),
        (
            ["--additional-config", '{"ultraserve": {"engine": "fast", "computes": false}}'],
            "--kv-transfer-config: not with --engine fast",
        ),
        (["--speculative-config", NGRAMS], "--speculative-config: drafts are not verified beside"),
    ],
)
def test_what_an_exchange_of_kv_does_not_go_with_is_refused(flags: list[str], words: str) -> None:
    assert refusal("--kv-transfer-config", exchange(), *flags).startswith(words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"kv_lease_duration": 0}, "kv_lease_duration=0: expected emulated seconds above 0"),
        ({"bidirectional_kv_xfer": True}, "bidirectional_kv_xfer=True: expected false"),
    ],
)
def test_an_exchange_is_checked_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: dict[str, object], words: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        config_from_flags("--kv-transfer-config", exchange(kv_connector_extra_config=extra))
    taken = config_from_flags("--kv-transfer-config", exchange()).kv_transfer_config
    assert taken is not None
    assert taken.kv_connector == "NixlConnector", "which routers look for"


@pytest.mark.parametrize("tokens", ["48", "100", "512"])
def test_a_block_size_that_chips_cannot_lay_out_is_refused(tokens: str) -> None:
    text = refusal("--block-size", tokens)

    assert text == f"--block-size {tokens}: expected a power of two up to 128"


@pytest.mark.parametrize(
    "flags",
    [
        ["--dtype", "float32"],
        ["--kv-cache-dtype", "auto"],
        ["--speculative-config", NGRAMS],
        ["--kv-events-config", '{"enable_kv_cache_events": true}'],
        ["--enforce-eager"],
        ["--no-enable-prefix-caching"],
        ["--scheduling-policy", "priority"],
        ["--max-num-seqs", "8", "--max-num-batched-tokens", "64"],
        ["--enable-expert-parallel"],
    ],
)
def test_flags_that_change_nothing_here_or_work_are_taken(flags: list[str]) -> None:
    assert config_from_flags(*flags).scheduler_config.scheduler_cls.endswith("LockstepScheduler")


def test_the_engine_gets_our_executor_and_scheduler_and_steps_one_after_the_other() -> None:
    config = config_from_flags("--async-scheduling", "--distributed-executor-backend", "mp")

    backend = config.parallel_config.distributed_executor_backend
    assert backend == "serving.plugin.executor.UltraServeExecutor"
    scheduler = config.scheduler_config.scheduler_cls
    assert scheduler == "serving.plugin.lockstep_scheduler.LockstepScheduler"
    assert config.scheduler_config.async_scheduling is False
    assert config.model_config.dtype is torch.float32


@pytest.mark.parametrize(("flags", "tokens"), [([], 32), (["--block-size", "64"], 64)])
def test_blocks_have_the_vendor_s_size_unless_the_user_says_another(
    flags: list[str], tokens: int
) -> None:
    assert config_from_flags(*flags).cache_config.block_size == tokens


def test_a_server_s_own_limits_are_the_simulator_s() -> None:
    config = config_from_flags()
    scheduler, cache = config.scheduler_config, config.cache_config
    limits = SchedulerLimits()

    assert scheduler.max_num_seqs == limits.max_num_seqs
    assert scheduler.max_num_batched_tokens == limits.max_num_batched_tokens
    assert (scheduler.policy, scheduler.enable_chunked_prefill) == ("fcfs", True)
    assert scheduler.long_prefill_token_threshold == 0
    assert cache.block_size == limits.block_tokens
    assert cache.enable_prefix_caching == limits.prefix_caching
    assert cache.gpu_memory_utilization == HBM_SHARE


def test_the_named_model_bounds_the_context_whatever_the_weights_could() -> None:
    named = {"ultraserve": {"model": "qwen3-30b-a3b"}}
    limit = deployment_of(engine_config(additional_config=named)).time_model.max_context_tokens

    stretched = engine_config(additional_config=named, max_model_len=None)
    assert stretched.model_config.max_model_len == limit < 131_072
    assert engine_config(max_model_len=None).model_config.max_model_len == 131_072
    short = engine_config(additional_config=named, max_model_len=512)
    assert short.model_config.max_model_len == 512


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"chips": 145}, "chips"),
        ({"tp": 3}, "tp"),
        ({"ep": 3}, "ep"),
        ({"lnc": 4}, "lnc"),
        ({"prefill_policy": "hasty"}, "prefill_policy"),
        ({"model": "gpt-unknown"}, "model"),
        ({"system": "trn9"}, "system"),
        ({"colour": "red"}, "ultraserve.colour"),
        ({"clock": "fast"}, "clock"),
    ],
)
def test_wrong_settings_stop_the_config_in_one_line(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        engine_config(additional_config={"ultraserve": settings})

    assert str(raised.value).startswith(f"{field}={next(iter(settings.values()))}: expected ")
    assert "\n" not in str(raised.value)


def test_a_model_that_does_not_fit_stops_the_config_with_what_would() -> None:
    settings = {"chips": 4, "model": "deepseek-v3"}
    with pytest.raises(HbmExhausted, match="smallest that fits: --chips") as raised:
        engine_config(additional_config={"ultraserve": settings})

    assert "deepseek-v3" in str(raised.value).splitlines()[0]


@pytest.mark.parametrize(
    ("flag", "hint"),
    [("--tensor-parallel-size", '"tp": N'), ("--data-parallel-size", '"chips": N')],
)
def test_a_flag_that_ultraserve_serve_reads_is_refused_with_that_hint(flag: str, hint: str) -> None:
    text = refusal(flag, "2")

    assert "use `ultraserve serve`, which reads this flag itself" in text
    assert hint in text


def test_a_checkpoint_that_cannot_be_computed_stops_the_config(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((SMALL_MOE_DIR / name).read_bytes())

    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        engine_config(model=str(tmp_path))


def test_the_deployment_says_what_is_emulated() -> None:
    settings = {"chips": 8, "tp": 2, "lnc": 1, "model": "qwen3-30b-a3b", "clock": "dilated:9"}
    deployment = deployment_of(engine_config(additional_config={"ultraserve": settings}))

    assert deployment.info() == {
        "system": "trn3-nl72x2",
        "ultraserver": "0",
        "chips": "8",
        "tp": "2",
        "dp": "4",
        "ep": "8",
        "lnc": "1",
        "attention_split": "heads",
        "time_model": "qwen3-30b-a3b",
        "weights": "small-moe",
        "routing": "uniform (expected)",
        "clock": "dilated:9",
        "calibration": "fitted",
        "overlap": "none",
    }
    assert deployment_of(engine_config(chips=2)).time_model.name == "small-moe"


def test_vllm_finds_the_platform_by_its_entry_point_and_it_poses_as_no_other() -> None:
    module, _, name = entry_point().rpartition(".")

    assert (module, name) == (UltraServePlatform.__module__, UltraServePlatform.__name__)
    assert isinstance(current_platform, UltraServePlatform)
    assert not current_platform.is_cuda_alike()
    assert "trainium3" in current_platform.get_device_name()
    assert current_platform.get_device_total_memory() == 144 * 2**30
