"""An engine that sleeps and wakes, in vLLM's words and meaning, on the emulated chips.

vLLM pauses the scheduler first, and resumes it when everything is awake again; in between no step
comes. HBM at the timed model's scale is given up and taken back, which takes emulated time: the
next step begins that much later. Chips that sleep draw what idle ones do: nobody has published less
for a chip whose HBM holds nothing.
"""

from collections.abc import Sequence

from emulator.errors import ConfigError
from emulator.ultraserver.handover_cost import HandoverCost
from emulator.ultraserver.sleeping_hbm import SLEEP_TAGS, SleepingHbm
from emulator.units import NS_PER_S
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.engine.model_versions import ModelVersions
from serving.policy.day_night.handover import CHANGING_HANDS
from serving.wire import control_call as calls
from serving.wire.machine_state import LeaseState, SleepState

_MOVES = (
    *(calls.DrainRequest, calls.ResumeRequest, calls.HealRequest, calls.InjectRequest),
    *(calls.PublishRequest, calls.RollbackRequest),
)
"""What changes who holds HBM, or reads weights: not while the engine sleeps."""


class EngineSleep:
    """What the engine has of sleep: what is not in HBM, and what the last time took."""

    def __init__(self, live: LiveMachine, versions: ModelVersions, ledger: Ledger) -> None:
        self._machine = live.machine
        self._hbm = SleepingHbm(live.machine)
        self._versions = versions
        self._ledger = ledger
        self._slept = self._woken = HandoverCost()

    def refusal(self, request: calls.ControlRequest) -> calls.Refusal | None:
        """Why `request` cannot be answered while the engine sleeps; None when it can."""
        if not self._hbm.asleep or not isinstance(request, _MOVES):
            return None
        words = "the engine sleeps: it has to wake up first"
        return calls.Refusal(code=calls.RefusalCode.PRECONDITION, message=words)

    def fall_asleep(self, level: int, leases: Sequence[LeaseState]) -> int:
        """Give up weights and KV; returns the time that it takes, in ns.

        Raises ConfigError for another level than 1 and 2, and while chips change hands.
        """
        moving = [lease.number for lease in leases if lease.phase in CHANGING_HANDS]
        if moving:
            raise ConfigError(
                field="sleep",
                value=level,
                expected=f"the end of lease {moving[0]}'s hand-over first",
            )
        self._slept, self._woken = self._hbm.fall_asleep(level), HandoverCost()
        self._ledger.charge(self._slept.joules)
        return self._slept.duration_ns

    def discard(self, tags: Sequence[str]) -> None:
        """Give up the KV cache; raises ConfigError for weights, which only sleep gives up."""
        if tuple(tags) != ("kv_cache",):
            raise ConfigError(field="tags", value=",".join(tags), expected="kv_cache")
        self._hbm.discard_kv()

    def wake(self, tags: Sequence[str] | None) -> int:
        """Bring back what `tags` name, or everything; returns the time that it takes, in ns.

        Raises:
            ConfigError: another tag.
            CheckpointError: the weights cannot be read again; nothing has changed.
        """
        wanted = SLEEP_TAGS if tags is None else tuple(tags)
        reads = self._hbm.level == 2 and "weights" in self._hbm.asleep and "weights" in wanted
        if reads:
            self._versions.check_readable()
        cost = self._hbm.wake(wanted)
        if reads:  # a chip that is lost of it is met by a machine whose HBM is whole again
            self._versions.reread()
        self._woken += cost
        self._ledger.charge(cost.joules)
        return cost.duration_ns

    def state(self) -> SleepState:
        """As the control service shows it."""
        both = self._slept + self._woken
        chips = int(self._machine.chips_up.sum())
        return SleepState(
            asleep=self._hbm.asleep,
            level=self._hbm.level,
            host_bytes=self._hbm.host_bytes,
            sleep_s=self._slept.duration_ns / NS_PER_S,
            wake_s=self._woken.duration_ns / NS_PER_S,
            joules=both.joules + both.idle_joules(self._machine.system, chips=chips),
        )
