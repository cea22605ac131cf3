"""neuron-monitor's JSON as types that refuse a field more, one less, or of another kind.

Source: AWS Neuron SDK docs, neuron-monitor-user-guide.rst.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Percent = Annotated[float, Meta(ge=0, le=100.0001)]
Seconds = Annotated[float, Meta(ge=0)]


class Exact(Struct, forbid_unknown_fields=True, kw_only=True):
    """Exactly these fields."""


class PhysicalCore(Exact):
    neuroncore_utilization: Percent


class Core(Exact):
    neuroncore_utilization: Percent
    flops: Count
    v3d: dict[str, PhysicalCore] | msgspec.UnsetType = msgspec.UNSET
    v4d: dict[str, PhysicalCore] | msgspec.UnsetType = msgspec.UNSET


class NeuroncoreCounters(Exact):
    period: Seconds
    neuroncores_in_use: dict[str, Core]
    error: str


class ErrorSummary(Exact):
    generic: Count
    numerical: Count
    transient: Count
    model: Count
    runtime: Count
    hardware: Count


class ExecutionSummary(Exact):
    completed: Count
    completed_with_err: Count
    completed_with_num_err: Count
    timed_out: Count
    incorrect_input: Count
    failed_to_queue: Count


class Percentiles(Exact):
    p0: Seconds
    p1: Seconds
    p25: Seconds
    p50: Seconds
    p75: Seconds
    p99: Seconds
    p100: Seconds


class LatencyStats(Exact):
    total_latency: Percentiles | None
    device_latency: Percentiles | None


class ExecutionStats(Exact):
    period: Seconds
    error_summary: ErrorSummary
    execution_summary: ExecutionSummary
    latency_stats: LatencyStats
    error: str


class HostBytes(Exact):
    application_memory: Count
    constants: Count
    dma_buffers: Count
    tensors: Count


class CoreBytes(Exact):
    constants: Count
    model_code: Count
    model_shared_scratchpad: Count
    runtime_memory: Count
    tensors: Count


class Breakdown(Exact):
    host: HostBytes
    neuroncore_memory_usage: dict[str, CoreBytes]


class UsedBytes(Exact):
    host: Count
    neuron_device: Count
    usage_breakdown: Breakdown


class LoadedDeviceBytes(Exact):
    constants: Count
    model_code: Count
    runtime_memory: Count
    tensors: Count


class LoadedBreakdown(Exact):
    host: HostBytes
    neuron_device: LoadedDeviceBytes


class LoadedBytes(Exact):
    host: Count
    neuron_device: Count
    usage_breakdown: LoadedBreakdown


class Subgraph(Exact):
    memory_used_bytes: LoadedBytes
    neuroncore_index: Count
    neuron_device_index: Count


class LoadedModel(Exact):
    name: str
    uuid: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    model_id: Count
    is_running: bool
    subgraphs: dict[str, Subgraph]


class MemoryUsed(Exact):
    period: Seconds
    neuron_runtime_used_bytes: UsedBytes
    loaded_models: list[LoadedModel]
    error: str


class RuntimeVcpus(Exact):
    user: Percent
    system: Percent


class RuntimeVcpuUsage(Exact):
    period: Seconds
    vcpu_usage: RuntimeVcpus
    error: str


class RuntimeReport(Exact):
    neuroncore_counters: NeuroncoreCounters
    execution_stats: ExecutionStats
    memory_used: MemoryUsed
    neuron_runtime_vcpu_usage: RuntimeVcpuUsage


class RuntimeData(Exact):
    pid: Count
    address: str
    neuron_runtime_tag: str
    error: str
    report: RuntimeReport


class Device(Exact):
    neuron_device_index: Count
    mem_ecc_corrected: Count
    mem_ecc_uncorrected: Count
    sram_ecc_corrected: Count
    sram_ecc_uncorrected: Count


class HwCounters(Exact):
    period: Seconds
    neuron_devices: list[Device]
    error: str


class Vcpus(Exact):
    user: Percent
    nice: Percent
    system: Percent
    idle: Percent
    io_wait: Percent
    irq: Percent
    soft_irq: Percent


class VcpuUsage(Exact):
    period: Seconds
    average_usage: Vcpus
    usage_data: dict[str, Vcpus]
    context_switch_count: Count
    error: str


class MemoryInfo(Exact):
    period: Seconds
    memory_total_bytes: Count
    memory_used_bytes: Count
    swap_total_bytes: Count
    swap_used_bytes: Count
    error: str


class SystemData(Exact):
    neuron_hw_counters: HwCounters
    vcpu_usage: VcpuUsage
    memory_info: MemoryInfo


class InstanceInfo(Exact):
    instance_name: str
    instance_id: str
    instance_type: str
    instance_availability_zone: str
    instance_availability_zone_id: str
    instance_region: str
    ami_id: str
    subnet_id: str
    error: str


class HardwareInfo(Exact):
    neuron_device_type: str
    neuron_device_version: str
    neuroncore_version: str
    neuron_device_count: Count
    neuron_device_memory_size: Count
    neuroncore_per_device_count: Count
    logical_neuroncore_config: Count
    error: str


class Pod(Exact):
    pod_name: str
    namespace: str
    container_name: list[str]


class K8sInfo(Exact):
    period: Seconds
    neuroncores_k8s_info: dict[str, Pod]
    neurondevices_k8s_info: dict[str, Pod]
    error: str


class MonitorLine(Exact):
    neuron_runtime_data: list[RuntimeData]
    system_data: SystemData
    instance_info: InstanceInfo
    neuron_hardware_info: HardwareInfo
    neuron_k8s_info: K8sInfo


def read_line(line: str | bytes) -> MonitorLine:
    """Parse the line; raises msgspec.ValidationError naming the wrong field."""
    return msgspec.json.decode(line, type=MonitorLine)
