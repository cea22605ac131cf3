"""From a published row to a deployment and its load; each gap is filled by a rule named here."""

import re
from dataclasses import replace
from typing import Final

from emulator.errors import ConfigError
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.partition import Partition, check_partition
from emulator.specs.system import SystemSpec
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.other_models.published_row import PublishedRow
from serving.analysis.validate.row_deployment import (
    HELD_OUTPUT_SHARE,
    KV_BLOCK_TOKENS,
    Pool,
    RowDeployment,
    Stack,
    hardware_names,
)

SEQUENCES_MAX: Final = 2_048
"""*Assumed*, of a rank: TensorRT-LLM's default max_batch_size; vLLM's rows state theirs."""
CACHE_SHARE: Final = {"trtllm": 0.95, "vllm": 0.9}
"""Of what weights leave (TensorRT-LLM, the page's kv_cache_free_gpu_mem_fraction), of HBM with
weights (vLLM's default gpu_memory_utilization).
"""
SAME_DIMENSIONS: Final = {"llama-3.3-70b": "llama-3.1-70b"}
_LAYOUT: Final = re.compile(r"(?P<kind>tp|dep)(?P<gpus>\d+)(?:pp(?P<stages>\d+))?")
_BLACKWELL: Final = "blackwell"


def load_of(row: PublishedRow) -> RowLoad:
    """The row's closed loop; raises ConfigError for what cannot be predicted."""
    if row.engine not in CACHE_SHARE:
        raise ConfigError("engine", row.engine, f"one of {', '.join(CACHE_SHARE)}")
    if row.prompt_tokens is None or row.output_tokens is None:
        raise ConfigError("isl, osl", "nothing", "lengths, which the source does not state")
    model, system = published_model(row), published_system(row)
    pool = _pool(row, model, system)
    ranks = pool.partition.ranks
    room = _room_tokens(row, model, pool)
    slots = _slots(row, ranks, room)
    if slots < ranks:
        raise ConfigError("layout", row.layout, "room in HBM for a sequence, beside the weights")
    asked = row.users or row.requests or SEQUENCES_MAX * ranks
    return RowLoad(
        deployment=RowDeployment(
            framework=row.engine,
            model=model,
            prefill=pool,
            decode=pool,
            disaggregated=False,
            rides=ranks == 1,
            draft_tokens=0,
            prompt_tokens=float(row.prompt_tokens),
            output_tokens=float(row.output_tokens),
            prompt_tokens_max=round(row.prompt_tokens),
            output_tokens_max=round(row.output_tokens),
            chips=pool.partition.chips,
            slots=slots,
            kv_blocks=int(room / KV_BLOCK_TOKENS),
            stack=Stack(
                machine=row.hardware,
                fp4=model.experts > 0 and model.expert_format.bits_per_element <= 4,
                drafts=False,
            ),
        ),
        # Requests that are sent at once and do not fit wait outside of the loop.
        users=asked if row.users else max(1, int(min(asked, slots, _sequences(row, ranks)))),
    )


def published_model(row: PublishedRow) -> ModelSpec:
    """The model in the row's weights, KV in FP8; gpt-oss as stored, its KV in BF16 on Hopper, as
    the page's options have it.
    """
    name = SAME_DIMENSIONS.get(row.model, row.model)
    if name not in MODELS:
        raise ConfigError("model", row.model, "a model of the catalog")
    model = model_by_name(name)
    hopper = row.hardware in ("h100", "h200")
    if name.startswith("gpt-oss"):
        return replace(model, kv_bytes_per_element=2 if hopper else 1)
    formats = {"bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4"}
    if row.precision not in formats:
        raise ConfigError("precision", row.precision, f"one of {', '.join(formats)}")
    return model.at_precision(formats[row.precision], kv_bytes_per_element=1)


def published_system(row: PublishedRow) -> SystemSpec:
    """The box or rack of the row's chip, whose cluster holds a deployment."""
    known = hardware_names()
    if row.hardware not in known:
        raise ConfigError("hardware", row.hardware, "a chip of the catalog")
    return known[row.hardware]


def published_partition(row: PublishedRow, model: ModelSpec, system: SystemSpec) -> Partition:
    """Attention data parallel and whole experts for `dep`, and for every mixture on several GPUs:
    the options of TensorRT-LLM's page have both.
    """
    found = _LAYOUT.fullmatch(row.layout)
    if found is None:
        raise ConfigError("layout", row.layout or "nothing", "tpN or depN, from the source")
    if found["stages"] is not None:
        raise ConfigError("layout", row.layout, "no pipeline stages: steps have none")
    gpus = int(found["gpus"])
    apart = found["kind"] == "dep" or model.experts > 0
    return Partition(
        chips=gpus,
        tp=1 if apart else gpus,
        ep=gpus if model.experts else 1,
        lnc=system.chip.default_lnc.count,
    )


def _pool(row: PublishedRow, model: ModelSpec, box: SystemSpec) -> Pool:
    partition = published_partition(row, model, box)
    system = box.cluster(-(-partition.chips // box.chips.count))
    check_partition(partition, system, {model.name: (model.heads, model.heads)})
    return Pool(workers=1, system=system, partition=partition)


def _sequences(row: PublishedRow, ranks: int) -> int:
    """VLLM's rows ran with as many sequences as requests."""
    return ranks * SEQUENCES_MAX if row.engine == "trtllm" else row.requests or SEQUENCES_MAX


def _room_tokens(row: PublishedRow, model: ModelSpec, pool: Pool) -> float:
    """Tokens of a rank's cache."""
    share, is_trt = CACHE_SHARE[row.engine], row.engine == "trtllm"
    terms = HbmTerms(activation_bytes=0, collective_bytes=0, utilization=1.0 if is_trt else share)
    room = kv_capacity_tokens(model, pool.system, pool.partition, terms=terms)
    return room * share if is_trt else room


def _slots(row: PublishedRow, ranks: int, room: float) -> float:
    """Sequences of all ranks: TensorRT-LLM reserves a whole request; vLLM's grow (*assumed*)."""
    assert row.prompt_tokens is not None
    assert row.output_tokens is not None
    reserved = 1.0 if row.engine == "trtllm" else HELD_OUTPUT_SHARE
    return ranks * room / (row.prompt_tokens + reserved * row.output_tokens)
