"""The vendor's names of chips and cores.

A device's version numbers the vendor's chips, a core's version its kinds of core, with a "d" where
two physical cores form a logical one.

Source: AWS Neuron SDK docs, neuron-monitor-user-guide.rst (trainium2: v4, cores v3, v3d with LNC=2)
and neuron-top-user-guide.rst (v2 on trn1 and inf2); a public sample of neuron-monitor on an
inf2.xlarge (inferentia2: v3). *Assumed* for trainium1 and trainium3, without a public sample: the
numbers before and after; trainium3's cores are NeuronCore-v4 in its documents.
"""

from dataclasses import dataclass
from typing import Final

NOT_THERE: Final = "emulated"
"""Value of names that only a real instance has."""

_CORES_OF_D: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronNames:
    """Versions of a chip, such as "v4"; `core_version` is of a physical core."""

    device_version: str
    core_version: str

    def logical_core_version(self, lnc: int) -> str:
        """A logical core's version, as neuron-monitor and neuron-top write it."""
        return f"{self.core_version}d" if lnc == _CORES_OF_D else self.core_version


_OF_CHIP: Final = {
    "trainium1": NeuronNames(device_version="v2", core_version="v2"),
    "inferentia2": NeuronNames(device_version="v3", core_version="v2"),
    "trainium2": NeuronNames(device_version="v4", core_version="v3"),
    "trainium3": NeuronNames(device_version="v5", core_version="v4"),
}
_NO_NEURON: Final = NeuronNames(device_version=NOT_THERE, core_version=NOT_THERE)


def neuron_names(chip: str) -> NeuronNames:
    """Versions of a catalog chip; "emulated" if it is not the vendor's."""
    return _OF_CHIP.get(chip, _NO_NEURON)
