"""The families of neuron-monitor-prometheus.py, by the vendor's own names and labels.

A `neuroncore` is one logical NeuronCore of the partition, counted chip after chip; a chip's logical
cores share its work evenly. The engine is one runtime, `runtime_tag`. Instance labels without a
value are "emulated". CPU and memory of the host are this host's real ones.

Source of the names: AWS Neuron SDK, src/examples/neuron-monitor/neuron-monitor-grafana.json.
"""

from typing import Final

from serving.telemetry.device_memory import CATEGORIES
from serving.telemetry.families.family import Family, Kind, Unit

INSTANCE_LABELS: Final = (
    "instance_name",
    "instance_id",
    "instance_type",
    "availability_zone",
    "region",
    "subnet_id",
)
_RUNTIME: Final = ("runtime_tag",)


def _family(
    name: str, unit: Unit, words: str, *labels: str, kind: Kind = "gauge", runtime: bool = True
) -> Family:
    of = (*INSTANCE_LABELS, *(_RUNTIME if runtime else ()), *labels)
    return Family(name, words, kind=kind, unit=unit, labels=of)


UTILIZATION: Final = _family(
    "neuroncore_utilization_ratio",
    "1",
    "Share of the time in which a NeuronCore was busy, mean of the last emulated seconds; none for "
    "one that trains, whose work is not metered, or whose chip is out.",
    "neuroncore",
)
MEMORY: Final = {
    category: _family(
        f"neuroncore_memory_usage_{category}",
        "bytes",
        f"HBM of a NeuronCore, {what}.",
        "neuroncore",
    )
    for category, what in zip(
        CATEGORIES,
        (
            "constants: weights",
            "model code: microcode",
            "shared scratchpad: activations",
            "runtime memory: buffers of collectives",
            "tensors: KV cache, and state of a training job",
        ),
        strict=True,
    )
}
RUNTIME_MEMORY: Final = _family(
    "neuron_runtime_memory_used_bytes",
    "bytes",
    "Memory of the engine: HBM (neuron_device), and of the emulated hosts what sleeping weights "
    "hold (host).",
    "memory_location",
)
RUNTIME_VCPU: Final = _family(
    "neuron_runtime_vcpu_usage_ratio",
    "1",
    "Real CPU time of the server's processes over that of all of this host's CPUs.",
    "usage_type",
)
ERRORS: Final = _family(
    "execution_errors",
    "1",
    "Faults: those that lose work or memory (hardware), those that only slow it (transient); the "
    "others are 0 by nature.",
    "error_type",
    kind="counter",
)
STATUS: Final = _family(
    "execution_status",
    "1",
    "Steps that completed; a step that meets a fault is repeated, so the others are 0.",
    "status_type",
    kind="counter",
)
LATENCY: Final = _family(
    "execution_latency_seconds",
    "s",
    "Emulated seconds of the last steps from begin to end, at most 1,024 of them.",
    "percentile",
)
ECC: Final = _family(
    "hardware_ecc_events",
    "1",
    "HBM stacks that have failed (mem_ecc_uncorrected); single bit errors are not modelled, and "
    "those of SRAM neither: 0 by nature.",
    "event_type",
    "neuron_device_index",
    kind="counter",
    runtime=False,
)
SYSTEM_MEMORY_TOTAL: Final = _family(
    "system_memory_total_bytes", "bytes", "This host's real memory.", runtime=False
)
SYSTEM_MEMORY_USED: Final = _family(
    "system_memory_used_bytes", "bytes", "This host's real memory that is in use.", runtime=False
)
SYSTEM_SWAP_TOTAL: Final = _family(
    "system_swap_total_bytes", "bytes", "This host's real swap.", runtime=False
)
SYSTEM_SWAP_USED: Final = _family(
    "system_swap_used_bytes", "bytes", "This host's real swap that is in use.", runtime=False
)
SYSTEM_VCPUS: Final = _family(
    "system_vcpu_count", "1", "CPUs that this host really has.", runtime=False
)
SYSTEM_VCPU: Final = _family(
    "system_vcpu_usage_ratio",
    "1",
    "Real time of this host's CPUs by what they did.",
    "usage_type",
    runtime=False,
)
INSTANCE: Final = _family(
    "instance_info", "1", "Always 1: what the instance would be.", runtime=False
)
NEURON: Final = (
    *(UTILIZATION, *MEMORY.values(), RUNTIME_MEMORY, RUNTIME_VCPU, ERRORS, STATUS, LATENCY, ECC),
    *(SYSTEM_MEMORY_TOTAL, SYSTEM_MEMORY_USED, SYSTEM_SWAP_TOTAL, SYSTEM_SWAP_USED),
    *(SYSTEM_VCPUS, SYSTEM_VCPU, INSTANCE),
)
