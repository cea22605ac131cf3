"""The vendor's families, from one snapshot and this host."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from emulator.memory.lnc import CoreMap
from emulator.specs.fault import FaultKind
from serving.telemetry.device_memory import CATEGORIES, added, core_bytes
from serving.telemetry.execution_errors import ERROR_OF_FAULT, ERRORS, OUTCOMES, PERCENTILES
from serving.telemetry.families import neuron as families
from serving.telemetry.host_meter import HostReading
from serving.telemetry.neuron_tools.neuron_names import NOT_THERE
from serving.telemetry.page.chip_page import metered
from serving.telemetry.page.text_page import TextPage, label_sets
from serving.wire.machine_snapshot import MachineSnapshot

_ECC_OF_SRAM: Final = ("sram_ecc_corrected", "sram_ecc_uncorrected")

_USED_CPU: Final = ("user", "system")
"""All that the vendor's exporter exports: its dashboard sums them as the use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The vendor's labels: `instance_type` is the system's name in the catalog. `cores`: logical
    cores of a chip; None without NeuronCores, when these families are left out.
    """

    instance_type: str
    runtime_tag: str
    cores: CoreMap | None

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of INSTANCE_LABELS."""
        named = {"instance_type": self.instance_type}
        return tuple(named.get(name, NOT_THERE) for name in families.INSTANCE_LABELS)


def add_neuron(
    page: TextPage, snapshot: MachineSnapshot, instance: Instance, host: HostReading
) -> None:
    """Add NeuronCores, the runtime, hardware counters, and the host."""
    if instance.cores is None:
        return
    _add_cores(page, snapshot, instance, instance.cores)
    _add_executions(page, snapshot, instance)
    _add_host(page, instance, host)
    of = instance.labels
    events = []
    for meters in snapshot.meters:
        device = str(meters.chip)
        events += [
            ((*of, "mem_ecc_corrected", device), meters.ecc_corrected),
            ((*of, "mem_ecc_uncorrected", device), meters.ecc_uncorrected),
            *(((*of, name, device), 0) for name in _ECC_OF_SRAM),
        ]
    page.add(families.ECC, events)
    page.add(families.INSTANCE, [(of, 1)])


def _add_cores(
    page: TextPage, snapshot: MachineSnapshot, instance: Instance, cores: CoreMap
) -> None:
    of = (*instance.labels, instance.runtime_tag)
    numbers = [
        tuple((*of, str(cores.global_core(chip=chip.chip, core=core.core))) for core in cores.cores)
        for chip in snapshot.state.chips
    ]
    busy = [
        (of_chip, meters.utilization)
        for of_chip, chip, meters in zip(
            numbers, snapshot.state.chips, snapshot.meters, strict=True
        )
        if metered(chip)
    ]
    used = label_sets(tuple(key for of_chip, _ in busy for key in of_chip))
    page.add_each(families.UTILIZATION, used, [share for of_chip, share in busy for _ in of_chip])
    held = [core_bytes(chip, cores) for chip in snapshot.state.chips]
    sets = label_sets(tuple(key for of_chip in numbers for key in of_chip))
    for category in CATEGORIES:
        values = [core[category] for of_cores in held for core in of_cores]
        page.add_each(families.MEMORY[category], sets, values)
    device_bytes = sum(sum(added(of_cores).values()) for of_cores in held)
    host_bytes = snapshot.state.sleep.host_bytes
    memory = [((*of, "host"), host_bytes), ((*of, "neuron_device"), device_bytes)]
    page.add(families.RUNTIME_MEMORY, memory)


def _add_executions(page: TextPage, snapshot: MachineSnapshot, instance: Instance) -> None:
    of = (*instance.labels, instance.runtime_tag)
    errors: Counter[str] = Counter()
    for kind, count in snapshot.faults_by_kind.items():
        errors[ERROR_OF_FAULT[FaultKind(kind)]] += count
    page.add(families.ERRORS, [((*of, name), errors[name]) for name in ERRORS])
    done = {"completed": snapshot.telemetry.steps}
    page.add(families.STATUS, [((*of, name), done.get(name, 0)) for name in OUTCOMES])
    times = [
        ((*of, name), time_s)
        for name in PERCENTILES
        if (time_s := getattr(snapshot.step_times, f"{name}_s")) is not None
    ]
    page.add(families.LATENCY, times)


def _add_host(page: TextPage, instance: Instance, host: HostReading) -> None:
    of = instance.labels
    runtime = [((*of, instance.runtime_tag, name), x) for name, x in host.server_share.items()]
    page.add(families.RUNTIME_VCPU, runtime)
    used = [((*of, name), host.cpu_share[name]) for name in _USED_CPU if name in host.cpu_share]
    page.add(families.SYSTEM_VCPU, used)
    for family, value in (
        (families.SYSTEM_MEMORY_TOTAL, host.memory_total_bytes),
        (families.SYSTEM_MEMORY_USED, host.memory_used_bytes),
        (families.SYSTEM_SWAP_TOTAL, host.swap_total_bytes),
        (families.SYSTEM_SWAP_USED, host.swap_used_bytes),
        (families.SYSTEM_VCPUS, host.cpus),
    ):
        page.add(family, [(of, value)])
