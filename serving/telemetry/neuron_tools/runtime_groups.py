"""neuron-monitor's groups of one Neuron application: the engine, or a training job on leased chips.

Groups cover the time between two snapshots, in emulated seconds. A chip's logical cores share its
work evenly: the emulator times chips. Zero by nature: errors of kinds that no fault has (generic,
numerical, model, runtime), executions that end in an error (a step that meets a fault is repeated),
and of the emulated hosts' memory all but sleeping weights; real processes' memory is left out.

Source of the fields: AWS Neuron SDK docs, neuron-monitor-user-guide.rst. Per-core entries of
physical cores ("v3d") exist for LNC=2; on trainium3 they are "v4d" and "nc_v4.0", *assumed*, as
only trainium2's are documented.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from serving.telemetry.device_memory import added, core_bytes
from serving.telemetry.execution_errors import ERROR_OF_FAULT, ERRORS, OUTCOMES, PERCENTILES
from serving.telemetry.neuron_tools.engine_snapshot import Between, EngineSnapshot
from serving.telemetry.neuron_tools.neuron_names import neuron_names
from serving.wire.machine_snapshot import StepDurations
from serving.wire.machine_state import ChipState, LeaseState

_MODEL_ID: Final = 1
_LOADED: Final = ("constants", "model_code", "runtime_memory", "tensors")
_NOT_METERED: Final = "a training job's work is not metered by core"


def neuroncore_counters(between: Between) -> dict[str, Any]:
    """Utilization and FLOPS of the engine's cores."""
    look = between.now
    per_chip = len(look.cores.cores)
    in_use: dict[str, Any] = {}
    for chip in look.in_use():
        percent = 100 * between.busy_share(chip.chip)
        flops = round(between.flops_per_s(chip.chip) / per_chip)
        for core_id in look.core_ids(chip.chip):
            in_use[str(core_id)] = _core(look, core_id, percent, flops)
    return {"period": between.emulated_s, "neuroncores_in_use": in_use, "error": ""}


def _core(look: EngineSnapshot, core_id: int, percent: float, flops: int) -> dict[str, Any]:
    core: dict[str, Any] = {"neuroncore_utilization": percent, "flops": flops}
    names, lnc = neuron_names(look.description.chip.name), look.cores.lnc
    version = names.logical_core_version(lnc)
    if version != names.core_version:
        physical = range(core_id * lnc, (core_id + 1) * lnc)
        core[version] = {
            f"nc_{names.core_version}.{each}": {"neuroncore_utilization": percent}
            for each in physical
        }
    return core


def execution_stats(between: Between) -> dict[str, Any]:
    """Steps, faults, and the newest durations, as StepDurations."""
    errors = dict.fromkeys(ERRORS, 0)
    for kind, name in ERROR_OF_FAULT.items():
        errors[name] += between.faults(kind)
    snapshot = between.now.snapshot
    return {
        "period": between.emulated_s,
        "error_summary": errors,
        "execution_summary": dict.fromkeys(OUTCOMES, 0) | {"completed": between.steps},
        "latency_stats": {
            "total_latency": _percentiles(snapshot.step_times) if between.steps else None,
            "device_latency": _percentiles(snapshot.device_times) if between.steps else None,
        },
        "error": "",
    }


def _percentiles(times: StepDurations) -> dict[str, float] | None:
    found = {name: getattr(times, f"{name}_s") for name in PERCENTILES}
    return None if None in found.values() else found


def memory_used(between: Between) -> dict[str, Any]:
    """HBM of the engine's cores by category, weights asleep on hosts, and the model."""
    look = between.now
    held = _held_by_core(look, look.in_use())
    sleep = look.snapshot.state.sleep
    used = _used_bytes(held, sleep.host_bytes if sleep.asleep else 0)
    return {
        "period": between.emulated_s,
        "neuron_runtime_used_bytes": used,
        "loaded_models": [_loaded_model(look, held)],
        "error": "",
    }


def training_group(between: Between, lease: LeaseState, name: str) -> dict[str, Any]:
    """One group of a training job on a lease's chips."""
    group: dict[str, Any] = {"period": between.emulated_s, "error": ""}
    look = between.now
    match name:
        case "neuroncore_counters":
            return group | {"neuroncores_in_use": {}, "error": _NOT_METERED}
        case "execution_stats":
            steps = _training_steps(look, lease.number)
            done = max(steps - _training_steps(between.before, lease.number), 0)
            return group | {
                "error_summary": dict.fromkeys(ERRORS, 0),
                "execution_summary": dict.fromkeys(OUTCOMES, 0) | {"completed": done},
                "latency_stats": {"total_latency": None, "device_latency": None},
            }
    assert name == "memory_used", name
    chips = tuple(chip for chip in look.snapshot.state.chips if chip.chip in lease.chips)
    used = _used_bytes(_held_by_core(look, chips), 0)
    return group | {"neuron_runtime_used_bytes": used, "loaded_models": []}


def _training_steps(look: EngineSnapshot | None, number: int) -> int:
    leases = look.snapshot.state.leases if look else ()
    found = [lease.training for lease in leases if lease.number == number]
    return found[0].steps if found and found[0] is not None else 0


def _held_by_core(look: EngineSnapshot, chips: Sequence[ChipState]) -> dict[int, dict[str, int]]:
    """Bytes by category of every core, by its number over all chips."""
    held: dict[int, dict[str, int]] = {}
    for chip in chips:
        of_cores = core_bytes(chip, look.cores)
        held.update(zip(look.core_ids(chip.chip), of_cores, strict=True))
    return held


def _used_bytes(held: Mapping[int, dict[str, int]], host_bytes: int) -> dict[str, Any]:
    return {
        "host": host_bytes,
        "neuron_device": sum(added(tuple(held.values())).values()),
        "usage_breakdown": {
            "host": _host_breakdown(constants_bytes=host_bytes),
            "neuroncore_memory_usage": {str(core): parts for core, parts in held.items()},
        },
    }


def _host_breakdown(*, constants_bytes: int = 0) -> dict[str, int]:
    return {
        "application_memory": 0,
        "constants": constants_bytes,
        "dma_buffers": 0,
        "tensors": 0,
    }


def _loaded_model(look: EngineSnapshot, held: Mapping[int, dict[str, int]]) -> dict[str, Any]:
    """The timed model, a subgraph on every core: weights and microcode as loaded there. Its id and
    uuid derive from its name: nothing is compiled.
    """
    state = look.snapshot.state
    per_chip = len(look.cores.cores)
    subgraphs = {}
    for number, (core, parts) in enumerate(held.items()):
        loaded = dict.fromkeys(_LOADED, 0)
        loaded |= {name: parts[name] for name in ("constants", "model_code")}
        subgraphs[f"sg_{number:02}"] = {
            "memory_used_bytes": {
                "host": 0,
                "neuron_device": sum(loaded.values()),
                "usage_breakdown": {"host": _host_breakdown(), "neuron_device": loaded},
            },
            "neuroncore_index": core,
            "neuron_device_index": core // per_chip,
        }
    return {
        "name": state.model,
        "uuid": uuid5(NAMESPACE_OID, f"{state.model} {state.weights}").hex,
        "model_id": _MODEL_ID,
        "is_running": not state.sleep.asleep,
        "subgraphs": subgraphs,
    }
