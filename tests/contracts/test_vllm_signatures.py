"""The parts of vLLM that our plugin stands on are shaped as they were in the version we pin.

mypy does not look into vLLM, so this does: each case names a class and what it looked like in
vLLM 0.32.0. A failure after an upgrade says what changed; read that part of vLLM, adapt
`serving/plugin`, and only then the line here.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest

ENGINE = "vllm.v1.engine"
BLOCK_POOL = "vllm.v1.core.block_pool:BlockPool"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
EXECUTOR = "vllm.v1.executor.abstract:Executor"
LOGGERS = "vllm.v1.metrics.loggers"
PLATFORM = "vllm.platforms.interface:Platform"
PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
SCHEDULER_INTERFACE = "vllm.v1.core.sched.interface:SchedulerInterface"
STEP = "vllm.v1.core.sched.output"

RECORD = "self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0"
SCHEDULER_INIT = (
    "self, vllm_config, kv_cache_config, structured_output_manager, block_size, "
    "{hash_block_size}, mm_registry=..., include_finished_set=False, log_stats=False"
)

# What the plugin overrides or calls: class -> method -> parameters.
PARAMETERS: dict[str, dict[str, str]] = {
    EXECUTOR: {
        "__init__": "self, vllm_config",
        "_init_executor": "self",
        "initialize_from_config": "self, kv_cache_configs",
        "compile_or_warm_up_model": "self",
        "determine_available_memory": "self",
        "get_kv_cache_specs": "self",
        "get_supported_kv_cache_layouts": "self",
        "set_kv_cache_layout": "self, layout_name",
        "collective_rpc": "self, method, timeout=None, args=(), kwargs=None, non_block=False",
        "execute_model": "self, scheduler_output, non_block=False",
        "sample_tokens": "self, grammar_output, non_block=False",
        "execute_dummy_batch": "self",
        "take_draft_token_ids": "self",
        "check_health": "self",
        "register_failure_callback": "self, callback",
        "shutdown": "self",
        "supports_async_scheduling": "cls",
        "sleep": "self, level=1",
        "wake_up": "self, tags=None",
        "discard": "self, tags",
    },
    SCHEDULER_INTERFACE: {
        "__init__": SCHEDULER_INIT.format(hash_block_size="hash_block_size"),
        "schedule": "self, throttle_prefills=False",
        "get_grammar_bitmask": "self, scheduler_output",
        "update_from_output": "self, scheduler_output, model_runner_output",
        "update_draft_token_ids": "self, draft_token_ids",
        "update_draft_token_ids_in_output": "self, draft_token_ids, scheduler_output",
        "add_request": "self, request",
        "finish_requests": "self, request_ids, finished_status",
        "get_num_unfinished_requests": "self",
        "has_unfinished_requests": "self",
        "has_finished_requests": "self",
        "has_requests": "self",
        "set_pause_state": "self, pause_state",
        "reset_prefix_cache": "self, reset_running_requests=False, reset_connector=False",
        "reset_encoder_cache": "self",
        "get_request_counts": "self",
        "get_kv_cache_usage": "self",
        "make_stats": "self",
        "shutdown": "self",
        "get_kv_connector": "self",
        "get_ec_connector": "self",
        "get_kv_event_publisher_config": "self",
    },
    SCHEDULER: {
        "__init__": SCHEDULER_INIT.format(hash_block_size="hash_block_size=None"),
        "schedule": "self, throttle_prefills=False",
        "update_from_output": "self, scheduler_output, model_runner_output",
        "add_request": "self, request",
        "finish_requests": "self, request_ids, finished_status",
        "get_grammar_bitmask": "self, scheduler_output",
        "get_request_counts": "self",
    },
    PLATFORM: {
        "pre_register_and_update": "cls, parser=None",
        "apply_config_platform_defaults": "cls, vllm_config",
        "check_and_update_config": "cls, vllm_config",
        "update_block_size_for_backend": "cls, vllm_config",
        "validate_request": "cls, processed_inputs, params",
        "get_attn_backend_cls": "cls, selected_backend, attn_selector_config, num_heads=None",
        "get_device_name": "cls, device_id=0",
        "get_device_total_memory": "cls, device_id=0",
        "get_device_capability": "cls, device_id=0",
        "inference_mode": "cls",
        "is_pin_memory_available": "cls",
        "check_if_supports_dtype": "cls, dtype",
        "supports_fp8": "cls",
        "is_sleep_mode_available": "self",
    },
    f"{LOGGERS}:StatLoggerBase": {
        "__init__": "self, vllm_config, engine_index=0",
        "record": RECORD,
        "log_engine_initialized": "self",
        "log": "self",
        "record_sleep_state": "self, is_awake, level",
    },
    f"{LOGGERS}:AggregateStatLoggerBase": {
        "__init__": "self, vllm_config, engine_indexes",
        "record_admission_rejection": "self, reason",
    },
    f"{LOGGERS}:PrometheusStatLogger": {
        "__init__": "self, vllm_config, engine_indexes=None",
        "record": RECORD,
        "record_sleep_state": "self, sleep=0, level=0",
        "record_admission_rejection": "self, reason",
        "log_engine_initialized": "self",
    },
    PROCESSOR: {
        "do_tracing": "self, engine_core_output, req_state, iteration_stats",
        "process_outputs": (
            "self, engine_core_outputs, engine_core_timestamp=None, iteration_stats=None, "
            "weight_version=None"
        ),
    },
    # What direct streams do as `process_outputs` does.
    "vllm.v1.metrics.stats:IterationStats": {
        "update_from_output": (
            "self, output, engine_core_timestamp, is_prefilling, req_stats, lora_states, lora_name"
        ),
    },
    "vllm.v1.engine.output_processor:RequestState": {
        "track_weight_version": "self, weight_version",
    },
    "vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer": {
        "decode_next": "self, next_token_id",
    },
    # What further API processes are started with.
    "vllm.entrypoints.launchers.api_server.entry:": {
        "run_server_worker": "listen_address, sock, args, client_config=None, **uvicorn_kwargs",
    },
    "vllm.entrypoints.serve.instrumentator.metrics:": {"get_prometheus_registry": ""},
    "vllm.v1.engine.core_client:": {
        "launch_core_engines": "vllm_config, executor_class, log_stats, addresses",
    },
    # What a front is the other client of, and what its requests pass.
    "vllm.v1.engine.core_client:EngineCoreClient": {
        "make_async_mp_client": (
            "vllm_config, executor_class, log_stats, client_addresses=None, client_count=1, "
            "client_index=0, renderer=None"
        ),
    },
    "vllm.v1.engine.core:EngineCore": {"preprocess_add_request": "self, request"},
    "vllm.v1.engine.core:EngineCoreProc": {
        "_handle_request_preproc_error": "self, request",
        "_send_error_outputs_to_client": "self, req_ids, client_index",
    },
    "vllm.v1.utils:": {
        "run_api_server_worker_proc": (
            "listen_address, sock, args, client_config=None, **uvicorn_kwargs"
        ),
    },
    "vllm.entrypoints.openai.completion.serving:OpenAIServingCompletion": {
        "completion_stream_generator": (
            "self, request, engine_inputs, result_generator, request_id, created_time, "
            "model_name, num_prompts, tokenizer, request_metadata"
        ),
    },
    "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat": {
        "chat_completion_stream_generator": (
            "self, request, result_generator, request_id, model_name, conversation, tokenizer, "
            "request_metadata, chat_template_kwargs=None, mm_token_counts=None"
        ),
    },
    BLOCK_POOL: {"touch": "self, blocks", "free_blocks": "self, ordered_blocks"},
    CONNECTOR: {
        "__init__": "self, vllm_config, role, kv_cache_config",
        "on_new_request": "self, request",
        "get_num_new_matched_tokens": "self, request, num_computed_tokens",
        "update_state_after_alloc": "self, request, blocks, num_external_tokens",
        "build_connector_meta": "self, scheduler_output",
        "update_connector_output": "self, connector_output",
        "request_finished": "self, request, block_ids",
    },
}

# What a subclass of ours must define.
ABSTRACT: dict[str, str] = {
    EXECUTOR: "_init_executor check_health collective_rpc",
    SCHEDULER_INTERFACE: (
        "__init__ add_request finish_requests get_grammar_bitmask get_num_unfinished_requests "
        "get_request_counts has_finished_requests make_stats pause_state reset_encoder_cache "
        "reset_prefix_cache schedule set_pause_state shutdown update_draft_token_ids "
        "update_draft_token_ids_in_output update_from_output"
    ),
    CONNECTOR: (
        "build_connector_meta get_num_new_matched_tokens save_kv_layer start_load_kv "
        "update_state_after_alloc wait_for_layer_load wait_for_save"
    ),
    PLATFORM: "",
    f"{LOGGERS}:StatLoggerBase": "__init__ log_engine_initialized record",
}

# What crosses between vLLM and us. All fields, not only those we read: merging the ranks'
# outputs into one must decide about each, and a new one would be lost without a word.
FIELDS: dict[str, str] = {
    f"{STEP}:SchedulerOutput": (
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "scheduled_spec_decode_tokens scheduled_encoder_inputs finished_req_ids "
        "free_encoder_mm_hashes scheduled_encoder_input_stats preempted_req_ids "
        "has_structured_output_requests pending_structured_output_tokens num_invalid_spec_tokens "
        "kv_connector_metadata has_sync_kv_loads aux_output_connector_metadata "
        "ec_connector_metadata ec_manager_metadata new_block_ids_to_zero kv_cache_block_copies "
        "kv_connector_block_state num_spec_tokens_to_schedule num_common_prefix_blocks"
    ),
    f"{STEP}:NewRequestData": (
        "req_id prompt_token_ids mm_features sampling_params pooling_params block_ids "
        "num_computed_tokens lora_request prompt_embeds prompt_is_token_ids prefill_token_ids "
        "replay_start"
    ),
    f"{STEP}:CachedRequestData": (
        "req_ids resumed_req_ids new_token_ids all_token_ids new_block_ids num_computed_tokens "
        "num_output_tokens"
    ),
    f"{STEP}:GrammarOutput": "structured_output_request_ids grammar_bitmask num_acceptable_drafts",
    "vllm.v1.outputs:ModelRunnerOutput": (
        "req_ids req_id_to_index sampled_token_ids logprobs prompt_logprobs_dict "
        "prompt_token_id_logprobs_dict pooler_output kv_connector_output ec_connector_output "
        "num_nans_in_logits cudagraph_stats aux_output_connector_output sampling_masks"
    ),
    "vllm.v1.outputs:KVConnectorOutput": (
        "finished_sending finished_recving kv_connector_stats kv_cache_events "
        "kv_connector_worker_meta invalid_block_ids failed_recving expected_finished_count"
    ),
    "vllm.v1.outputs:LogprobsLists": (
        "logprob_token_ids logprobs sampled_token_ranks cu_num_generated_tokens"
    ),
    "vllm.v1.outputs:LogprobsTensors": (
        "logprob_token_ids logprobs selected_token_ranks cu_num_generated_tokens "
        "cu_num_generated_tokens_tensor"
    ),
    # The stamps that a request's spans are made of.
    "vllm.v1.metrics.stats:RequestStateStats": (
        "num_generation_tokens num_preemptions arrival_time queued_ts scheduled_ts first_token_ts "
        "last_token_ts first_token_latency is_corrupted is_watermarked is_watermark_skipped"
    ),
    # What a plain output of direct streams is without.
    f"{ENGINE}:EngineCoreOutput": (
        "request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output "
        "finish_reason stop_reason events kv_transfer_params ec_transfer_params trace_headers "
        "prefill_stats routed_experts num_nans_in_logits mm_cache_miss_hashes new_sampling_mask "
        "spec_decode_metrics prompt_token_id_logprobs"
    ),
    f"{ENGINE}:EngineCoreOutputs": (
        "engine_index outputs scheduler_stats timestamp utility_output finished_requests "
        "wave_complete start_wave weight_version"
    ),
    "vllm.v1.metrics.stats:SchedulerStats": (
        "num_running_reqs num_waiting_reqs num_skipped_waiting_reqs num_kv_fetch_reqs_by_stage "
        "step_counter current_wave kv_cache_usage iteration_details prefix_cache_stats "
        "connector_prefix_cache_stats kv_cache_eviction_events spec_decoding_stats "
        "kv_connector_stats ec_connector_stats waiting_lora_adapters running_lora_adapters "
        "cudagraph_stats perf_stats"
    ),
}


# What the plugin reads of a scheduler and of a request, or sets on them between two steps.
ATTRIBUTES: dict[str, str] = {
    SCHEDULER: (
        "requests running waiting kv_holding_waiting policy block_size log_stats "
        "finished_req_ids_dict kv_cache_manager scheduler_config max_num_active_reqs "
        "max_num_scheduled_tokens adaptive_long_prefill_threshold prefill_capacity_bound "
        "connector finished_recving_kv_req_ids"
    ),
    "vllm.v1.request:Request": (
        "request_id client_index priority status events num_computed_tokens is_prefill_chunk "
        "num_in_flight_tokens num_output_placeholders num_stale_output_tokens drop_stale_output "
        "num_preemptions block_hashes streaming_queue trace_headers prompt_token_ids max_tokens "
        "num_prompt_tokens arrival_time resumable prefill_stats skip_reading_prefix_cache"
    ),
    # How a response's fingerprint gets the names of the weights.
    "vllm.outputs:RequestOutput": "kv_transfer_params",
    PROCESSOR: "tracing_enabled request_states external_req_ids",
    "vllm.v1.engine.output_processor:RequestState": (
        "detokenizer stats lora_name queue stream_interval"
    ),
    "vllm.entrypoints.generate.base.serving:GenerateBaseServing": "system_fingerprint",
}


STARS: dict[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def named(where: str) -> Any:
    """Return the class that `module:Name` says, or the module of `module:`."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def parameters(function: Callable[..., Any]) -> str:
    """Render a function's parameters without annotations; a default that is an object is `...`."""

    def rendered() -> Iterator[str]:
        keyword_only = False
        for one in inspect.signature(function).parameters.values():
            if one.kind is one.KEYWORD_ONLY and not keyword_only:
                keyword_only = True
                yield "*"
            stars = STARS.get(one.kind, "")
            plain = one.default is None or isinstance(one.default, bool | int | str | tuple)
            default = f"={one.default!r}" if plain else "=..."
            yield stars + one.name + ("" if one.default is one.empty else default)

    return ", ".join(rendered())


def field_names(kind: Any) -> set[str]:
    """Return the field names of a dataclass, a msgspec struct or a named tuple."""
    if is_dataclass(kind):
        return {field.name for field in fields(kind)}
    return set(getattr(kind, "__struct_fields__", ()) or kind._fields)


def difference(what: str, expected: set[str], found: set[str]) -> str:
    new, gone = sorted(found - expected), sorted(expected - found)
    return f"vLLM {version('vllm')} changed {what}: new {new}, gone {gone}"


def test_vllm_is_the_version_that_these_shapes_were_read_from() -> None:
    assert version("vllm") == "0.32.0"


@pytest.mark.parametrize(
    ("where", "method"),
    [
        pytest.param(where, method, id=f"{where.partition(':')[2] or 'module'}.{method}")
        for where, methods in PARAMETERS.items()
        for method in methods
    ],
)
def test_a_method_takes_the_parameters_that_we_pass_or_accept(where: str, method: str) -> None:
    expected = PARAMETERS[where][method]
    owner = named(where)
    assert hasattr(owner, method), f"vLLM {version('vllm')} has no {where}.{method} any more"
    function = inspect.getattr_static(owner, method)
    found = parameters(getattr(function, "__func__", function))

    assert found == expected, f"vLLM {version('vllm')} changed the parameters of {where}.{method}"


@pytest.mark.parametrize("where", ABSTRACT)
def test_a_subclass_must_define_what_ours_define(where: str) -> None:
    expected = set(ABSTRACT[where].split())
    found = set(getattr(named(where), "__abstractmethods__", ()))

    assert found == expected, difference(f"what {where} leaves to subclasses", expected, found)


@pytest.mark.parametrize("where", FIELDS)
def test_a_message_has_the_fields_that_we_read_or_fill(where: str) -> None:
    expected = set(FIELDS[where].split())
    found = field_names(named(where))

    assert found == expected, difference(f"the fields of {where}", expected, found)


@pytest.mark.parametrize("where", ATTRIBUTES)
def test_an_object_gets_the_attributes_that_we_read_or_set(where: str) -> None:
    source = inspect.getsource(named(where).__init__)
    made = set(re.findall(r"self\.(\w+)\b(?:: [^=\n]+)? = ", source))
    gone = set(ATTRIBUTES[where].split()) - made

    assert gone == set(), f"vLLM {version('vllm')} no longer makes these in {where}"


def test_a_changed_parameter_would_be_seen() -> None:
    def before(self: object, a: int, *, b: int = 1) -> None: ...
    def after(self: object, a: int, b: int = 1) -> None: ...

    assert parameters(before) == "self, a, *, b=1"
    assert parameters(after) == "self, a, b=1"
