"""Latency targets of the simulator and the closed forms: TTFT and TPOT, as in loadgen."""

from typing import Final

from emulator.errors import ConfigError
from loadgen.errors import OptionError
from loadgen.measures.slo import Slo

_EXPECTED: Final = "ttft=500ms,tpot=30ms@p99: a time for one or both, each once, and a percentile"


def parse_slo(text: str) -> Slo:
    """Parse a target on TTFT, on TPOT, or on both; raises ConfigError for others."""
    try:
        slo = Slo.parse(text)
    except OptionError as error:
        raise ConfigError("slo", text, _EXPECTED) from error
    names = [bound.name for bound in slo.bounds]
    if not set(names) <= {"ttft", "tpot"} or len(set(names)) < len(names):
        raise ConfigError("slo", text, _EXPECTED)
    return slo
