"""The Neuron runtime's environment variables, read as the runtime reads them: empty is unset.

Source: AWS Neuron SDK docs, neuron-runtime/guides/configuration-guide.rst and
logical-neuroncore-config.rst; the status codes are nrt_status's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulator.errors import NeuronError

LOGICAL_NC_CONFIG: Final = "NEURON_LOGICAL_NC_CONFIG"
VIRTUAL_CORE_SIZE: Final = "NEURON_RT_VIRTUAL_CORE_SIZE"
NUM_CORES: Final = "NEURON_RT_NUM_CORES"
VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"

NRT_INVALID: Final = "NRT_INVALID (2)"
NRT_LOAD_NOT_ENOUGH_NC: Final = "NRT_LOAD_NOT_ENOUGH_NC (9)"
NRT_NC_BUSY: Final = "NRT_NC_BUSY (1005)"

_RANGES: Final = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronEnvironment:
    """Values of the variables; None where unset. Only visible cores set `first_logical_core`."""

    lnc: int | None = None
    first_logical_core: int | None = None
    logical_cores: int | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "NeuronEnvironment":
        """Read the four variables.

        NEURON_RT_VISIBLE_CORES wins over NEURON_RT_NUM_CORES, of which 0 means all. Raises
        NeuronError (NRT_INVALID) for an invalid value, for LNC variables that disagree, and for
        cores that are not ascending without gap or overlap.
        """
        given = {name: text.strip() for name, text in variables.items() if text.strip()}
        lnc = _lnc(given)
        if VISIBLE_CORES in given:
            cores = visible_cores(given[VISIBLE_CORES])
            return cls(lnc=lnc, first_logical_core=cores.start, logical_cores=len(cores))
        count = _whole_number(given, NUM_CORES, least=0)
        return cls(lnc=lnc, logical_cores=count or None)

    @property
    def visible(self) -> range | None:
        """The requested logical cores, in the system's numbering."""
        if self.first_logical_core is None or self.logical_cores is None:
            return None
        return range(self.first_logical_core, self.first_logical_core + self.logical_cores)

    @property
    def cores_variable(self) -> str:
        """The variable that sets the number of cores."""
        return NUM_CORES if self.first_logical_core is None else VISIBLE_CORES


def visible_cores(text: str) -> range:
    """The logical cores of `3-5,6`; raises NeuronError, which names the wrong one."""
    compact = text.replace(" ", "")
    if not _RANGES.fullmatch(compact):
        raise _invalid(VISIBLE_CORES, text, "core numbers and ranges like 0-3 or 3-5,6")
    bounds = [part.split("-") for part in compact.split(",")]
    ranges = [(int(ends[0]), int(ends[-1])) for ends in bounds]
    following = ranges[0][0]
    for first, last in ranges:
        if last < first:
            raise _invalid(VISIBLE_CORES, text, f"ascending ranges, not {first}-{last}")
        if first < following:
            raise _invalid(VISIBLE_CORES, text, f"each core once, ascending; {first} comes twice")
        if first > following:
            raise _invalid(VISIBLE_CORES, text, f"cores without a gap; {following} is missing")
        following = last + 1
    return range(ranges[0][0], following)


def as_ranges(cores: range) -> str:
    """The inverse of `visible_cores`: "4-7", or "4" for one."""
    return f"{cores.start}" if len(cores) == 1 else f"{cores.start}-{cores.stop - 1}"


def busy(cores: range, *, shared: range, holder: str) -> NeuronError:
    """The error for requesting `cores` when `holder` has `shared` of them."""
    return NeuronError(
        code=NRT_NC_BUSY,
        field=VISIBLE_CORES,
        value=as_ranges(cores),
        expected=f"cores that no other process has; {as_ranges(shared)}: held by {holder}",
    )


def _lnc(given: Mapping[str, str]) -> int | None:
    first = _whole_number(given, LOGICAL_NC_CONFIG, least=1)
    second = _whole_number(given, VIRTUAL_CORE_SIZE, least=1)
    if first is not None and second is not None and first != second:
        raise _invalid(
            LOGICAL_NC_CONFIG, first, f"the same as {VIRTUAL_CORE_SIZE}={second}, or only one"
        )
    return second if first is None else first


def _whole_number(given: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text, flags=re.ASCII) or int(text) < least:
        raise _invalid(name, text, f"a whole number of at least {least}")
    return int(text)


def _invalid(name: str, value: object, expected: str) -> NeuronError:
    return NeuronError(code=NRT_INVALID, field=name, value=value, expected=expected)
