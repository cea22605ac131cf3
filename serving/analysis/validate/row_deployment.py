"""From a measured configuration to the cost model's terms; gaps follow public launch scripts and
rules, each named at its use.
"""

from dataclasses import dataclass, replace
from typing import Final

from emulator.errors import ConfigError
from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition, check_partition
from emulator.specs.precisions import model_at
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import NS_PER_S
from serving.analysis.validate.launch_drafts import DraftingStack, launch_drafts
from serving.analysis.validate.launch_releases import launch_release
from serving.analysis.validate.measured_row import Configuration, PoolColumns

MODEL: Final = "deepseek-r1"
MEAN_LENGTH_SHARE: Final = 0.9
"""Lengths are uniform from 80 % to 100 % of the nominal ones (the benchmark's client)."""
KV_BLOCK_TOKENS: Final = 64  # FlashMLA's page; TensorRT-LLM's default is 32
TRT_CACHE_SHARE: Final = 0.8  # of what weights leave: free_gpu_memory_fraction in InferenceX's
STATIC_SHARE: Final = 0.85  # of HBM with weights: SGLang's mem-fraction-static there
LEAST_CACHE_SHARE: Final = 0.05
"""*Assumed*, of HBM: a configuration that ran had room for some cache, whatever is counted."""
HELD_OUTPUT_SHARE: Final = 0.7
"""*Assumed*: the part of its output that a sequence's blocks hold on average, between the half of
steady decoding and the whole that some engines reserve.
"""
SMALL_WORKER_GPUS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`workers` engines of `partition`, each on the fewest units of a system."""

    workers: int
    system: SystemSpec
    partition: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What sets a deployment's efficiencies, beside its work; `release`: see `launch_releases`."""

    machine: str
    fp4: bool
    drafts: bool
    release: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDeployment:
    """A configuration in the cost model's terms.

    `rides`: prompt chunks ride in decode steps (TensorRT-LLM without attention DP). `slots`:
    sequences that a decode worker's cache holds, in `kv_blocks` of each rank. `prompt_tokens` and
    `output_tokens` are means, `prompt_tokens_max` and `output_tokens_max` the nominal lengths.
    """

    framework: str
    model: ModelSpec
    prefill: Pool
    decode: Pool
    disaggregated: bool
    rides: bool
    draft_tokens: int
    prompt_tokens: float
    output_tokens: float
    prompt_tokens_max: int
    output_tokens_max: int
    chips: int
    slots: float
    kv_blocks: int
    stack: Stack


def hardware_names() -> dict[str, SystemSpec]:
    """The catalog's systems by the names of their chips, as measurements name hardware."""
    names: dict[str, SystemSpec] = {}
    for system in SYSTEMS.values():
        names.setdefault(system.chip.name, system)
    return names


def deployment_of(configuration: Configuration, users: int) -> RowDeployment:
    """For `users` at once; raises ConfigError for hardware outside of the catalog, or incomplete
    columns.
    """
    known = hardware_names()
    if configuration.hardware not in known:
        raise ConfigError(
            field="hardware", value=configuration.hardware, expected=f"one of {', '.join(known)}"
        )
    system = known[configuration.hardware]
    model = _model(configuration, system)
    prefill, decode = _pools(configuration, system)
    for pool in (prefill, decode):
        check_partition(pool.partition, pool.system, {model.name: (model.heads, model.heads)})
    chips = prefill.workers * prefill.partition.chips + decode.workers * decode.partition.chips
    trt = "trt" in configuration.framework
    attention_dp = configuration.decode.dp_attention
    prompt, output = configuration.prompt_tokens, configuration.output_tokens
    drafts = _draft_tokens(configuration, decode, users)
    kv_blocks = _kv_blocks(model, decode, trt=trt)
    return RowDeployment(
        framework=configuration.framework,
        model=model,
        prefill=prefill,
        decode=decode,
        disaggregated=configuration.disaggregated,
        rides=configuration.framework.startswith("trt") and not attention_dp,
        draft_tokens=drafts,
        prompt_tokens=MEAN_LENGTH_SHARE * prompt,
        output_tokens=MEAN_LENGTH_SHARE * output,
        prompt_tokens_max=prompt,
        output_tokens_max=output,
        chips=chips if configuration.disaggregated else decode.partition.chips,
        slots=_slots(decode, kv_blocks, prompt=prompt, output=output),
        kv_blocks=kv_blocks,
        stack=Stack(
            machine=configuration.hardware,
            fp4=configuration.precision == "fp4",
            drafts=drafts > 0,
            release=launch_release(configuration),
        ),
    )


def _draft_tokens(configuration: Configuration, decode: Pool, users: int) -> int:
    if not configuration.speculative:
        return 0
    partition = decode.partition
    return launch_drafts(
        DraftingStack(
            framework=configuration.framework,
            chip=decode.system.chip,
            fp4=configuration.precision == "fp4",
            disaggregated=configuration.disaggregated,
            attention_dp=partition.ranks > 1,
            chips=partition.chips,
            sequences=users / (decode.workers * partition.ranks),
            day=configuration.day,
        )
    )


def _model(configuration: Configuration, system: SystemSpec) -> ModelSpec:
    """The catalog's model in the row's precision; KV in FP8, but for SGLang on Hopper (BF16)."""
    model = model_by_name(MODEL)
    nvidia = system.chip.maker == "NVIDIA"
    names = {"fp8": "fp8", "bf16": "bf16", "fp4": "nvfp4" if nvidia else "mxfp4"}
    if configuration.precision not in names:
        raise ConfigError(
            field="precision", value=configuration.precision, expected=f"one of {', '.join(names)}"
        )
    stored = model_at(names[configuration.precision], model, system.chip)
    hopper = system.chip.name in ("h100", "h200", "h800")
    wide_cache = hopper and "trt" not in configuration.framework
    return replace(stored, kv_bytes_per_element=2 if wide_cache else 1)


def _pools(configuration: Configuration, system: SystemSpec) -> tuple[Pool, Pool]:
    if not configuration.disaggregated:
        columns = configuration.decode
        pool = _pool(system, columns, gpus=max(columns.tp, columns.ep), workers=1)
        return pool, pool
    pools = []
    for name, columns in (("prefill", configuration.prefill), ("decode", configuration.decode)):
        if columns.workers and columns.gpus % columns.workers:
            raise ConfigError(
                field=f"{name}_num_workers",
                value=columns.workers,
                expected=f"a divisor of the {columns.gpus} GPUs",
            )
        if not columns.workers or not columns.gpus:
            raise ConfigError(
                field=f"{name}_num_workers",
                value=columns.workers,
                expected="the split between prefill and decode workers, which this row leaves out",
            )
        gpus = columns.gpus // columns.workers
        if columns.tp not in (1, gpus):
            raise ConfigError(
                field=f"{name}_tp", value=columns.tp, expected=f"the {gpus} GPUs of a worker, or 1"
            )
        pools.append(_pool(system, columns, gpus=gpus, workers=columns.workers))
    return pools[0], pools[1]


def _pool(system: SystemSpec, columns: PoolColumns, *, gpus: int, workers: int) -> Pool:
    """A worker's GPUs as a partition.

    Rows of 2025 record tp 1 and ep 1 whatever ran. The public recipes (NVIDIA/srt-slurm, gb200-fp8)
    run workers of up to 4 GPUs as plain TP, wider ones as attention DP with expert parallelism.
    """
    attention_dp, ep = columns.dp_attention, columns.ep
    if columns.tp == columns.ep == 1 and gpus > 1:
        attention_dp = gpus > SMALL_WORKER_GPUS
        ep = gpus if attention_dp else 1
    ep = min(ep, gpus)
    unit = system.chips.count
    partition = Partition(
        chips=gpus,
        tp=1 if attention_dp else gpus,
        ep=ep,
        expert_tp=gpus // ep,
        lnc=system.chip.default_lnc.count,
    )
    return Pool(workers=workers, system=system.cluster(-(-gpus // unit)), partition=partition)


def _kv_blocks(model: ModelSpec, pool: Pool, *, trt: bool) -> int:
    """Whole blocks of a rank's cache.

    Experts divided over several chips take as much memory as whole ones on as many chips.
    """
    whole = replace(
        pool.partition, ep=pool.partition.expert_group, expert_tp=1, first_chip=0, spares=0
    )
    room = kv_capacity_tokens(model, pool.system, whole, terms=cache_terms(trt=trt))
    room = int(room * TRT_CACHE_SHARE) if trt else room
    least = LEAST_CACHE_SHARE * pool.system.chip.hbm_bytes / model.kv_bytes_per_token
    return max(room, int(least)) // KV_BLOCK_TOKENS


def cache_terms(*, trt: bool) -> HbmTerms:
    """HBM of a stack, of which TensorRT-LLM's cache takes TRT_CACHE_SHARE of what is left."""
    utilization = 1.0 if trt else STATIC_SHARE
    return HbmTerms(activation_bytes=0, collective_bytes=0, utilization=utilization)


def _slots(pool: Pool, kv_blocks: int, *, prompt: int, output: int) -> float:
    """Sequences of a worker by whole blocks, as engines count them."""
    held = MEAN_LENGTH_SHARE * (prompt + HELD_OUTPUT_SHARE * output)
    blocks_each = held / KV_BLOCK_TOKENS + 0.5  # the last block is half full on average
    return pool.partition.ranks * kv_blocks / blocks_each


def handover_s(deployment: RowDeployment) -> float:
    """Seconds of a prompt's KV from a prefill to a decode rank, on idle links; 0 if they share a
    pool.

    Pools too large for one scale-up domain are in two, over the network cards.
    """
    if not deployment.disaggregated:
        return 0.0
    system = max(
        (deployment.prefill.system, deployment.decode.system), key=lambda each: each.chips.count
    )
    apart = deployment.chips > system.chips.count
    taken_ns = prompt_transfer_ns(
        system.cluster(2) if apart else system,
        deployment.model,
        prompt_tokens=round(deployment.prompt_tokens),
        from_chips=deployment.prefill.partition.tp,
        to_chips=deployment.decode.partition.tp,
    )
    return taken_ns / NS_PER_S
