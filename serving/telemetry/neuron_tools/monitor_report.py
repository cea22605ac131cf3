"""neuron-monitor's report of a running engine: groups that are due, and the JSON of all.

Like neuron-monitor it waits until a group is due, updates it and writes the whole report. An engine
that does not answer is an `error` of its application; the host's groups go on.

Source of the fields: AWS Neuron SDK docs, neuron-monitor-user-guide.rst. What only a real instance
has is "emulated"; pods are not read.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from serving.telemetry.neuron_tools.engine_snapshot import Between, EngineSnapshot
from serving.telemetry.neuron_tools.host_sample import (
    HostSample,
    memory_info,
    runtime_vcpu_usage,
    vcpu_usage,
)
from serving.telemetry.neuron_tools.monitor_config import MetricGroups, MonitorConfig
from serving.telemetry.neuron_tools.neuron_names import NOT_THERE, neuron_names
from serving.telemetry.neuron_tools.runtime_groups import (
    execution_stats,
    memory_used,
    neuroncore_counters,
    training_group,
)

_LEASE_TAG: Final = "lease-"
_NO_PODS: Final = "the emulator does not look at Kubernetes"
_NO_JOB: Final = "a training job's processes are not looked at"
_EARLY_S: Final = 1e-3
"""A group due within this is due now: two of one period stay together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """One reading: `engine` is None when it did not answer, for the reason `error`. `pid` and `tag`
    are the server's: 0 and "emulated" where its processes are not visible.
    """

    host: HostSample
    engine: EngineSnapshot | None
    error: str = ""
    pid: int = 0
    tag: str = NOT_THERE


class MonitorReport:
    """A stream of reports; the `first` reading is the base of the next."""

    def __init__(self, config: MonitorConfig, first: Reading) -> None:
        self._config = config
        self._known = first.engine
        self._base: dict[tuple[str, str], Reading] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        self._groups: dict[tuple[str, str], dict[str, Any]] = {}
        self._first = first
        for key, period_s in self._wanted(first).items():
            self._base[key] = first
            self._due_s[key] = first.host.wall_s + period_s

    @property
    def next_wall_s(self) -> float | None:
        """When the next group is due, on the readings' clock; None without groups."""
        return min(self._due_s.values(), default=None)

    def update(self, reading: Reading) -> dict[str, Any]:
        """The whole report, with the due groups updated."""
        wall_s = reading.host.wall_s
        self._known = reading.engine or self._known
        wanted = self._wanted(reading)
        for key in self._base.keys() - wanted.keys():  # a job that has ended
            for kept in (self._base, self._due_s, self._groups):
                kept.pop(key, None)
        for key, period_s in wanted.items():
            base = self._base.setdefault(key, reading)
            if self._due_s.setdefault(key, wall_s) > wall_s + _EARLY_S and key in self._groups:
                continue
            made = self._group(key, base, reading)
            if made is None:  # the engine did not answer: its groups count on from where they were
                self._groups.pop(key, None)
            else:
                self._groups[key], self._base[key] = made, reading
            if self._due_s[key] <= wall_s + _EARLY_S:
                late = wall_s - self._due_s[key]
                self._due_s[key] = wall_s + period_s - late % period_s
        return self._json(reading)

    def _wanted(self, reading: Reading) -> dict[tuple[str, str], float]:
        """Period of each group by (application, name); "" is the engine, "system" the host."""
        found = {("system", name): period_s for name, period_s in self._config.system.items()}
        for application in self._applications(reading):
            groups = self._config.runtime_groups(application or reading.tag) or {}
            found |= {(application, name): period_s for name, period_s in groups.items()}
        return found

    def _applications(self, reading: Reading) -> list[str]:
        leases = reading.engine.training() if reading.engine else ()
        return ["", *(f"{_LEASE_TAG}{lease.number}" for lease in leases)]

    def _group(
        self, key: tuple[str, str], base: Reading, reading: Reading
    ) -> dict[str, Any] | None:
        """One group between two readings; None when the engine did not answer."""
        application, name = key
        if name == "vcpu_usage":
            return vcpu_usage(base.host, reading.host)
        if name == "memory_info":
            return memory_info(base.host, reading.host)
        if name == "neuron_runtime_vcpu_usage" and not application:
            return runtime_vcpu_usage(base.host, reading.host)
        if reading.engine is None:
            return None
        between = Between.of(base.engine, reading.engine)
        if name == "neuron_hw_counters":
            return hardware_counters(between)
        if application:
            if name == "neuron_runtime_vcpu_usage":
                return runtime_vcpu_usage(base.host, replace(reading.host, server=None)) | {
                    "error": _NO_JOB
                }
            number = int(application.removeprefix(_LEASE_TAG))
            (lease,) = (each for each in between.now.training() if each.number == number)
            return training_group(between, lease, name)
        if name == "neuroncore_counters":
            return neuroncore_counters(between)
        if name == "execution_stats":
            return execution_stats(between)
        return memory_used(between)

    def _json(self, reading: Reading) -> dict[str, Any]:
        runtimes = []
        for application in self._applications(reading):
            groups = self._config.runtime_groups(application or reading.tag)
            if groups is not None:
                runtimes.append(self._runtime(application, reading, groups))
        return {
            "neuron_runtime_data": runtimes,
            "system_data": self._made("system", self._config.system),
            "instance_info": instance_info(self._known, reading.error),
            "neuron_hardware_info": hardware_info(self._known),
            "neuron_k8s_info": {
                "period": reading.host.wall_s - self._first.host.wall_s,
                "neuroncores_k8s_info": {},
                "neurondevices_k8s_info": {},
                "error": _NO_PODS,
            },
        }

    def _runtime(self, application: str, reading: Reading, groups: MetricGroups) -> dict[str, Any]:
        return {
            "pid": 0 if application else reading.pid,
            "address": "",
            "neuron_runtime_tag": application or reading.tag,
            "error": reading.error,
            "report": self._made(application, groups),
        }

    def _made(self, application: str, groups: MetricGroups) -> dict[str, Any]:
        keys = ((application, name) for name in groups)
        return {key[1]: self._groups[key] for key in keys if key in self._groups}


def hardware_counters(between: Between) -> dict[str, Any]:
    """The `neuron_hw_counters` group: totals of the chips; SRAM has no faults here."""
    return {
        "period": between.emulated_s,
        "neuron_devices": [
            {
                "neuron_device_index": meters.chip,
                "mem_ecc_corrected": meters.ecc_corrected,
                "mem_ecc_uncorrected": meters.ecc_uncorrected,
                "sram_ecc_uncorrected": 0,
                "sram_ecc_corrected": 0,
            }
            for meters in between.now.snapshot.meters
        ],
        "error": "",
    }


def instance_info(look: EngineSnapshot | None, error: str) -> dict[str, str]:
    """The catalog's name as the type; the rest only real instances have."""
    nowhere = ("availability_zone", "availability_zone_id", "region")
    unknown = ("instance_name", "instance_id", *(f"instance_{name}" for name in nowhere))
    return dict.fromkeys((*unknown, "ami_id", "subnet_id"), NOT_THERE) | {
        "instance_type": look.snapshot.state.system if look else NOT_THERE,
        "error": "" if look else error,
    }


def hardware_info(look: EngineSnapshot | None) -> dict[str, Any]:
    """The chips, as far as known; `neuroncore_per_device_count` counts logical cores."""
    if look is None:
        return {
            "neuron_device_type": NOT_THERE,
            "neuron_device_version": NOT_THERE,
            "neuroncore_version": NOT_THERE,
            "neuron_device_count": 0,
            "neuron_device_memory_size": 0,
            "neuroncore_per_device_count": 0,
            "logical_neuroncore_config": 0,
            "error": "the engine has not answered yet",
        }
    chip, cores = look.description.chip.name, look.cores
    names = neuron_names(chip)
    return {
        "neuron_device_type": chip,
        "neuron_device_version": names.device_version,
        "neuroncore_version": names.logical_core_version(cores.lnc),
        "neuron_device_count": len(look.snapshot.state.chips),
        "neuron_device_memory_size": cores.stacks * cores.stack_bytes,
        "neuroncore_per_device_count": len(cores.cores),
        "logical_neuroncore_config": cores.lnc,
        "error": "",
    }
