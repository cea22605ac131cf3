"""Operators' actions and faults on a soaked server, one after the other, and undone again."""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from emulator.errors import UltraServeError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.wire import control_call
from serving.wire.machine_state import FaultStage

LASTS_S, PAUSE_S = 6.0, 6.0
"""Mean wall seconds of a trouble, and of the pause after it."""

SETTLE_S_MAX = 120.0
"""Wall seconds until the machine is whole at the end."""

POLL_S = 0.5


class Troubles:
    """Draws troubles from `seed` until stopped; `counts` has their numbers."""

    def __init__(self, control: ControlClient, *, seed: int, chips: int) -> None:
        self._control = control
        self._rng = np.random.default_rng([seed, 1])
        self._chips = chips
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.stopped = False

    def run(self) -> None:
        """Run until `stopped`, then leave a whole machine behind; blocks. Notes failures."""
        try:
            self._run()
        except (AssertionError, UltraServeError) as error:
            self.errors.append(f"troubles: {error}")

    def _run(self) -> None:
        kinds = (self._chip_fault, self._chip_fault, self._lease, self._drain)
        while not self.stopped:
            self._wait(self._rng.exponential(PAUSE_S))
            if self.stopped:
                break
            kinds[self._rng.integers(len(kinds))]()
        self._settle()

    def _chip_fault(self) -> None:
        chip = int(self._rng.integers(self._chips))
        faults = (
            Fault(kind=FaultKind.LOSE_CHIP, chip=chip),
            Fault(kind=FaultKind.HANG_CHIP, chip=chip),
            Fault(kind=FaultKind.SLOW_CHIP, chip=chip, factor=2.0),
            Fault(kind=FaultKind.CUT_LINK, chip=chip, tier=LinkTier.TRAY, lanes=1),
        )
        fault = faults[self._rng.integers(len(faults))]
        if not self._tried(
            fault.kind.value,
            lambda: self._control.call(control_call.INJECT_FAULT, fault=fault).accepted,
        ):
            return
        self._last()
        self._tried("heal", lambda: bool(self._control.call(control_call.HEAL)))

    def _lease(self) -> None:
        chip = int(self._rng.integers(self._chips))
        grace_s = float(self._rng.uniform(0.0, 2.0))
        leases: list[int] = []

        def drain() -> bool:
            lease = self._control.call(
                control_call.DRAIN, chips=[chip], grace_s=grace_s, purpose="maintenance"
            ).lease
            leases.extend([] if lease is None else [lease.number])
            return lease is not None

        if self._tried("lease", drain):
            self._last()
            self._tried(
                "resume",
                lambda: self._control.call(control_call.RESUME, lease=leases[0]).lease is not None,
            )

    def _drain(self) -> None:
        if self._tried("drain", lambda: self._control.call(control_call.DRAIN_ENGINE) is not None):
            self._wait(self._rng.exponential(LASTS_S / 2))
            self._tried(
                "undrain", lambda: self._control.call(control_call.UNDRAIN_ENGINE) is not None
            )

    def _tried(self, name: str, act: Callable[[], bool]) -> bool:
        try:
            done = act()
        except RefusedByServer as refusal:
            self.refused[f"{name}: {refusal}"[:160]] += 1
            return False
        (self.counts if done else self.refused)[name] += 1
        return done

    def _last(self) -> None:
        self._wait(self._rng.exponential(LASTS_S))

    def _wait(self, wall_s: float) -> None:
        end_s = time.monotonic() + wall_s
        while not self.stopped and time.monotonic() < end_s:
            time.sleep(POLL_S)  # another process's state is waited for

    def _settle(self) -> None:
        """Heal and take back everything; raises AssertionError after SETTLE_S_MAX."""
        end_s = time.monotonic() + SETTLE_S_MAX
        self._tried("undrain", lambda: self._control.call(control_call.UNDRAIN_ENGINE) is not None)
        while True:
            self._tried("heal", lambda: bool(self._control.call(control_call.HEAL)))
            state = self._control.call(control_call.GET_STATE)
            for lease in state.leases:
                if lease.phase in ("draining", "training"):
                    self._tried(
                        "resume",
                        lambda n=lease.number: bool(
                            self._control.call(control_call.RESUME, lease=n)
                        ),
                    )
            open_faults = [each for each in state.faults if each.stage is not FaultStage.HEALED]
            on_the_way = [lease for lease in state.leases if lease.phase != "serving"]
            if all(rank.up for rank in state.ranks) and not on_the_way:
                return
            assert time.monotonic() < end_s, f"not whole: {open_faults} {on_the_way}"
            time.sleep(POLL_S)
