"""What the vendor's labels say of a deployment."""

from collections.abc import Mapping
from typing import Final

from emulator.memory.lnc import core_map
from serving.engine.deployment import Deployment
from serving.telemetry.page.neuron_page import Instance

TAG_VARIABLE: Final = "NEURON_PROCESS_TAG"
"""By which neuron-monitor tells applications apart; without it a process's number does."""


def instance_of(deployment: Deployment, environment: Mapping[str, str], *, pid: int) -> Instance:
    """The instance; a chip whose cores form one logical core alone has no NeuronCores."""
    chip = deployment.system.chip
    has_cores = chip.lnc_sizes != (chip.cores.count,)
    return Instance(
        instance_type=deployment.system.name,
        runtime_tag=environment.get(TAG_VARIABLE) or str(pid),
        cores=core_map(chip, deployment.partition.lnc) if has_cores else None,
    )
