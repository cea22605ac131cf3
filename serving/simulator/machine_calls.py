"""Calls that come to a simulated machine at given times, as its control service would get them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.units import NS_PER_S
from serving.wire.control_call import (
    DrainRequest,
    HealRequest,
    InjectRequest,
    ResumeRequest,
    TrainingNote,
)

MachineCall = InjectRequest | HealRequest | DrainRequest | ResumeRequest | TrainingNote
"""A fault, a repair, a hand-over of chips (for training or maintenance), their way back, and what a
job has done with them. Leases are numbered from 1 on, in order of their drains."""


LOSSES_MAX = 10_000
"""A run that is longer than so many losses sees no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """A call at `at_s` emulated seconds to one of the engines: those that prefill have the numbers
    after the replicas'.

    Raises ConfigError for a time below 0 or not finite.
    """

    at_s: float
    call: MachineCall
    replica: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < float("inf"):
            raise ConfigError(field="at_s", value=self.at_s, expected="0 or more seconds")

    @property
    def at_ns(self) -> int:
        """The same time in ns."""
        return round(self.at_s * NS_PER_S)


def read_timed_calls(path: Path) -> list[TimedCall]:
    """From JSON lines such as `{"at_s": 30, "call": {"method": "drain", "chips": [4, 5],
    "grace_s": 2}}`, with `replica` where it is not 0.

    Raises ConfigError for a file that cannot be read, or a line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError("calls", path, f"a file of JSON lines ({error})") from error
    timed = []
    for number, line in enumerate(lines, start=1):
        try:
            timed.append(msgspec.json.decode(line, type=TimedCall))
        except (msgspec.MsgspecError, ConfigError) as error:
            raise ConfigError("calls", f"{path}:{number}", f"a timed call ({error})") from error
    return timed


def drawn_losses(
    engines: Sequence[Partition], *, every_s: float, repair_s: float, seed: int
) -> Sequence[TimedCall]:
    """Chips that are lost at random, on average one in `every_s` over all `engines`, each repaired
    after `repair_s`: `LOSSES_MAX` of them, each before its repair.

    All chips are equally likely, spares too; one that is being repaired is not lost again. Raises
    ConfigError for times not above 0.
    """
    for name, value in (("every_s", every_s), ("repair_s", repair_s)):
        if not 0 < value < float("inf"):
            raise ConfigError(field=name, value=value, expected="seconds, above 0")
    rng = np.random.default_rng(seed)
    ends = np.cumsum([each.chips + each.spares for each in engines])
    back_s: dict[int, float] = {}
    timed: list[TimedCall] = []
    at_s = rng.exponential(every_s)
    while len(timed) < 2 * LOSSES_MAX:
        lost = int(rng.integers(ends[-1]))  # of the chips of all engines
        if back_s.get(lost, 0.0) <= at_s:
            engine = int(ends.searchsorted(lost, side="right"))
            chip = lost - int(ends[engine]) + engines[engine].chips + engines[engine].spares
            fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
            timed.append(TimedCall(at_s=at_s, call=InjectRequest(fault=fault), replica=engine))
            heal = HealRequest(chip=chip)
            back_s[lost] = at_s + repair_s
            timed.append(TimedCall(at_s=at_s + repair_s, call=heal, replica=engine))
        at_s += rng.exponential(every_s)
    return timed


def check_replicas(calls: Sequence[TimedCall], replicas: int) -> None:
    """Raises ConfigError for a call to an engine that is not one of so many."""
    for call in calls:
        if not 0 <= call.replica < replicas:
            expected = f"0 to {replicas - 1}"
            raise ConfigError(field="replica", value=call.replica, expected=expected)
