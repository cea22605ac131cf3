"""Sleep and wake-up with vLLM's semantics, on the emulated chips.

vLLM pauses the scheduler until all is awake, so no step comes in between. Giving up and restoring
HBM, at the timed model's scale, delays the next step in emulated time. Sleeping chips draw idle
power: no lower figure is published for a chip with empty HBM.
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
"""Requests that change HBM owners or read weights: refused while the engine sleeps."""


class EngineSleep:
    """HBM that is given up, and the cost of the last sleep and wake-up."""

    def __init__(self, live: LiveMachine, versions: ModelVersions, ledger: Ledger) -> None:
        self._machine = live.machine
        self._hbm = SleepingHbm(live.machine)
        self._versions = versions
        self._ledger = ledger
        self._slept = self._woken = HandoverCost()

    def refusal(self, request: calls.ControlRequest) -> calls.Refusal | None:
        """The refusal of `request` while the engine sleeps; None when it can be answered."""
        if not self._hbm.asleep or not isinstance(request, _MOVES):
            return None
        words = "the engine sleeps: it has to wake up first"
        return calls.Refusal(code=calls.RefusalCode.PRECONDITION, message=words)

    def fall_asleep(self, level: int, leases: Sequence[LeaseState]) -> int:
        """Give up weights and KV; returns the duration in ns.

        Raises ConfigError for a level other than 1 and 2, and while chips change hands.
        """
        moving = [lease.number for lease in leases if lease.phase in CHANGING_HANDS]
        if moving:
            raise ConfigError("sleep", level, f"the end of lease {moving[0]}'s hand-over first")
        self._slept, self._woken = self._hbm.fall_asleep(level), HandoverCost()
        self._ledger.charge(self._slept.joules)
        return self._slept.duration_ns

    def discard(self, tags: Sequence[str]) -> None:
        """Give up the KV cache; raises ConfigError for weights, which only sleep gives up."""
        if tuple(tags) != ("kv_cache",):
            raise ConfigError("tags", ",".join(tags), "kv_cache")
        self._hbm.discard_kv()

    def wake(self, tags: Sequence[str] | None) -> int:
        """Restore `tags`, or everything; returns the duration in ns.

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
