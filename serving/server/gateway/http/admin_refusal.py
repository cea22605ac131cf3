"""Refuses vLLM's administrative paths: the control port serves them, with a key of its own.

403, with any alternative, also for paths that vLLM's app has with VLLM_SERVER_DEV_MODE alone.
"""

from http import HTTPStatus
from typing import Final

from serving.server.gateway.http.http_errors import HttpError

_CONTROL: Final = "of the control service ultraserve.v1.ControlService, on the control port"

_WAYS: Final = {
    # It would start and end engines of its own; here groups of chips leave and come back.
    "/scale_elastic_ep": f"`ultraserve drain` and `resume`, or Drain and Resume {_CONTROL}",
    "/sleep": f"`ultraserve engine sleep`, or Sleep {_CONTROL}",
    "/wake_up": f"`ultraserve engine wake_up`, or WakeUp {_CONTROL}",
    "/is_sleeping": f"`ultraserve engine state`, or GetRest {_CONTROL}",
    "/release_kv_cache_memory": f"`ultraserve engine sleep`, or Sleep {_CONTROL}",
    "/pause": f"`ultraserve engine pause`, or PauseGeneration {_CONTROL}",
    "/resume": f"`ultraserve engine resume`, or ResumeGeneration {_CONTROL}",
    "/is_paused": f"`ultraserve engine state`, or GetRest {_CONTROL}",
    "/reset_prefix_cache": f"ResetPrefixCache {_CONTROL}",
    "/start_profile": f"`ultraserve profile`, or RecordSteps {_CONTROL}",
    "/stop_profile": f"`ultraserve profile`, or GetRecording {_CONTROL}",
    "/server_info": f"`ultraserve describe`, or DescribeSystem {_CONTROL}",
    "/get_world_size": f"`ultraserve state`, or GetState {_CONTROL}",
    "/update_weights": f"`ultraserve publish`, or Publish {_CONTROL}",
    "/weight_info": f"`ultraserve state`, or GetState {_CONTROL}",
}
"""Administrative paths of vLLM -> alternatives."""

_NOT_OFFERED: Final = frozenset(
    {
        "/abort_requests",
        "/collective_rpc",
        "/fault_tolerance/apply",
        "/fault_tolerance/status",
        "/finish_weight_update",
        "/inference/v1/abort_requests",
        "/init_weight_transfer_engine",
        "/is_scaling_elastic_ep",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/shutdown_weight_transfer_engine",
        "/start_draft_weight_update",
        "/start_weight_update",
        "/update_weight_version",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/weight_checker",
    }
)
"""Without one: they reach into the engine's process or other clients' requests, or are for what
this engine lacks, such as LoRA and media."""

REFUSED_PATHS: Final = frozenset({*_WAYS, *_NOT_OFFERED})


def refusal_of(path: str) -> HttpError | None:
    """The answer to an administrative path; None for any other."""
    if path not in REFUSED_PATHS:
        return None
    way = _WAYS.get(path)
    where = "not offered by this server" if way is None else f"not served here: use {way}"
    return HttpError(HTTPStatus.FORBIDDEN, "not_served_here", f"{path} is {where}")
