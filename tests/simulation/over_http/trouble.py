"""Applies a plan to a running server, and asserts the invariants after each strike.

A dry run first asks the server whether it would survive. Strikes that it would not, or that are
impossible on the current machine, are left out and counted.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psutil

from emulator.specs.fault import Fault, FaultKind
from serving.server.control.control_client import RefusedByServer
from serving.wire import control_call
from serving.wire.machine_state import SERVING, FaultRecord, FaultStage, LeaseState, MachineState
from tests.simulation.over_http.books import (
    check_accounts,
    check_at_rest,
    check_counts,
    check_faults,
    check_now,
    check_stages,
    met_stage,
    read_page,
    requests_named,
    seated,
)
from tests.simulation.over_http.clients import Clients
from tests.simulation.over_http.served_machine import ServedMachine
from tests.simulation.over_http.strike import STRIKES_IN_HAND_OVER, Heal, Means, Strike, picked

MET_S_MAX: Final = 300.0
"""Wall seconds until recovery from a fault: half of the chips may have to restart."""
WAIT_S_MAX: Final = 240.0
HANG_UP_S_MAX: Final = 3.0
"""Until the server knows that a client has gone."""
HEALED_ONE_BY_ONE: Final = 4
STRIKES_TO_REST: Final = 20
ANSWERS_AFTER: Final = 2
BROKEN_MAX: Final = 0.25
"""Share of chips out of service from which everything is repaired before the next strike."""
_AWAY: Final = ("training", SERVING)
_OPEN: Final = (FaultStage.PENDING, FaultStage.RECOVERING)


@dataclass(kw_only=True)
class Figures:
    """Counts and durations; wall seconds."""

    struck: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    met_s: dict[str, list[float]] = field(default_factory=dict)
    killed_inside: int = 0
    rests: int = 0
    wall_s: float = 0.0
    faults: int = 0
    moved_requests: int = 0
    lease_moved_requests: int = 0
    leases: int = 0
    training_steps: int = 0
    resident_bytes: int = 0


class Trouble:
    """One server under load, and its strikes; `calm` requests were asked before."""

    def __init__(self, machine: ServedMachine, clients: Clients, *, calm: int) -> None:
        self.figures = Figures()
        self._machine, self._clients = machine, clients
        self._calm = calm
        self._before = self._state()
        self._lease: int | None = None
        self._strikes_in_lease = 0
        self._before_lease: set[int] = set()
        self._acts: dict[Means, Callable[[Strike], list[FaultRecord] | None]] = {
            Means.CALL: self._by_call,
            Means.KILL: self._kill,
            Means.KILL_IN_RECOVERY: self._kill_in_recovery,
            Means.KILL_IN_HEAL: self._kill_in_heal,
            Means.PAUSE: self._pause,
            Means.STOP: self._stop,
            Means.LOSE_NODE: self._lose_node,
            Means.HAND_OVER: self._hand_over,
        }

    def go_through(self, strikes: Sequence[Strike]) -> None:
        """Apply all of them, and leave the server whole and idle."""
        began_s = time.monotonic()
        for number, strike in enumerate(strikes, start=1):
            self._clients.check()
            time.sleep(strike.after_s)  # requests are answered meanwhile
            self._one(strike)
            if number % STRIKES_TO_REST == 0:
                self.rest()
        self.rest()
        self.figures.wall_s = time.monotonic() - began_s

    def _one(self, strike: Strike) -> None:
        began_s = time.monotonic()
        self.figures.resident_bytes = max(
            self.figures.resident_bytes, self._machine.resident_bytes()
        )
        moved = read_page(self._machine.url).moved
        try:
            records = self._acts[strike.means](strike)
        except RefusedByServer as refusal:
            print(f"  refused: {refusal}", flush=True)
            records = None
        took_s = time.monotonic() - began_s
        if records is None:
            self.figures.left_out[strike.name] += 1
            return
        self.figures.struck[strike.name] += 1
        self.figures.met_s.setdefault(strike.name, []).append(took_s)
        numbers = ", ".join(f"{r.number} {r.fault.kind} {r.fault.chip}" for r in records[:4])
        print(f"{strike.name}: {took_s:.1f} s: {len(records)} faults: {numbers}", flush=True)
        self._clients.wait_for(ANSWERS_AFTER)
        self._check(records)
        self._check_moved(records, since_s=began_s, before=moved)
        self._go_on_with_lease()
        self._heal(strike.heal, records)

    # --- what is done ---------------------------------------------------------------------------

    def _by_call(self, strike: Strike) -> list[FaultRecord] | None:
        state, client = self._state(), self._machine.client
        stacks = len(state.chips[0].stacks)
        fault = strike.fault(seated(state), racks=len(state.racks), stacks=stacks)
        foreseen = client.call(control_call.INJECT_FAULT, fault=fault, dry_run=True)
        assert (foreseen.accepted, foreseen.number) == (False, None)
        if not foreseen.survivable:
            print(f"  not survivable: {fault}: {foreseen.reason}", flush=True)
            return None
        report = client.call(control_call.INJECT_FAULT, fault=fault)
        assert report.accepted
        assert report.number is not None
        if self._lease is None:
            assert (report.survivable, report.reason) == (foreseen.survivable, foreseen.reason)
        records = self._met(len(state.faults) + 1)
        found = next(each for each in records if each.number == report.number)
        assert found.fault == fault, (found, fault)
        return records[len(state.faults) :]

    def _kill(self, strike: Strike) -> list[FaultRecord] | None:
        before = self._state()
        pid = self._victim(before, strike.chip_share)
        if pid is None:
            return None
        os.kill(pid, signal.SIGKILL)
        return self._lost(before, 1)

    def _kill_in_recovery(self, strike: Strike) -> list[FaultRecord] | None:
        if self._lease is not None:
            return None
        self._machine.client.call(control_call.HEAL)  # so that a spare's process is started
        before, workers = self._state(), self._machine.workers()
        first = self._victim(before, strike.chip_share)
        if first is None:
            return None
        os.kill(first, signal.SIGKILL)
        new = self._wait_for_new(workers, strike.second_after_s)
        self._second_kill(strike, first, new)
        return self._lost(before, 2)

    def _kill_in_heal(self, strike: Strike) -> list[FaultRecord] | None:
        if self._lease is not None:
            return None
        before = first = self._state()
        while len(seated(first)) == self._machine.size.chips:  # until no spare takes the seat
            pid = self._victim(first, strike.chip_share)
            if pid is None:
                return None
            os.kill(pid, signal.SIGKILL)
            self._met(len(first.faults) + 1)
            first = self._state()
        workers, client = self._machine.workers(), self._machine.client
        healing = threading.Thread(target=partial(client.call, control_call.HEAL))
        healing.start()
        new = self._wait_for_new(workers, WAIT_S_MAX, meanwhile=healing)
        self._second_kill(strike, -1, new)
        healing.join(MET_S_MAX)
        assert not healing.is_alive()
        return self._lost(before, len(first.faults) - len(before.faults) + 1)

    def _second_kill(self, strike: Strike, first: int, new: int | None) -> None:
        """Kill the process being started, or any other."""
        self.figures.killed_inside += new is not None
        others = sorted(set(self._machine.chips()) - {first})
        victim = picked(others, strike.other_share)
        if new is not None and strike.other_share < 0.5:
            self._wait_until(lambda: new in self._machine.chips(), "a chip starts")
            victim = new
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def _pause(self, strike: Strike) -> list[FaultRecord] | None:
        before = self._state()
        pid = picked(sorted(self._machine.chips()), strike.chip_share)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(strike.second_after_s)
        os.kill(pid, signal.SIGCONT)
        self._clients.wait_for(ANSWERS_AFTER)
        assert len(self._state().faults) == len(before.faults), "a short pause is no fault"
        return []

    def _stop(self, strike: Strike) -> list[FaultRecord] | None:
        before = self._state()
        pid = self._victim(before, strike.chip_share)
        if pid is None:
            return None
        os.kill(pid, signal.SIGSTOP)
        records = self._lost(before, 1)
        # The process of a chip that is given up is ended, although it answers no polite word.
        self._wait_until(lambda: not _runs(pid), f"process {pid} is stopped for ever")
        return records

    def _lose_node(self, strike: Strike) -> list[FaultRecord] | None:
        del strike
        self.rest()  # every other chip has to be there: half of them go at once
        before, cluster = self._state(), self._machine.cluster
        gone = self._machine.chips_of_other_node()
        if not self._is_survivable(before, seated(before)[-1]):
            return None
        cluster.lose_other()
        records = self._lost(before, gone)
        assert len(records) >= gone  # and spares that were to start there
        self._clients.wait_for(ANSWERS_AFTER)
        vacant = self._machine.size.chips - len(seated(self._state()))  # spares took the others
        cluster.start_other()
        self._machine.client.call(control_call.HEAL)
        self._wait_until(
            lambda: self._machine.chips_of_other_node() == vacant, "chips start on the node again"
        )
        return records

    def _hand_over(self, strike: Strike) -> list[FaultRecord] | None:
        if self._lease is not None:
            return None
        self._heal(Heal.ALL, [])
        client = self._machine.client
        state = client.call(control_call.GET_DAY_NIGHT)
        self._before_lease = set(self._machine.chips())
        group = state.groups[int(strike.chip_share * len(state.groups))]
        report = client.call(
            control_call.DRAIN, chips=group.chips, grace_s=0.05, purpose="training"
        )
        lease = report.lease or self._wait_for_lease(group.chips)
        self._lease, self._strikes_in_lease = lease.number, 0
        self.figures.leases += 1
        if strike.other_share < 0.5:  # or else the next strikes come while it drains
            number = lease.number
            self._wait_until(
                lambda: self._lease_now(number).phase in ("training", SERVING), "lease"
            )
        return []

    # --- what it takes --------------------------------------------------------------------------

    def _state(self) -> MachineState:
        return self._machine.state()

    def _is_survivable(self, state: MachineState, chip: int) -> bool:
        fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
        client = self._machine.client
        report = client.call(control_call.INJECT_FAULT, fault=fault, dry_run=True)
        del state
        return report.survivable

    def _victim(self, state: MachineState, share: float) -> int | None:
        """A chip's process; None if the chip's loss would not be survived."""
        chips = set(self._machine.chips())
        if self._lease is not None:  # processes that came later may be the training job's
            number = self._lease
            self._wait_until(lambda: self._lease_now(number).phase in _AWAY, "chips leave")
            chips = set(self._machine.chips()) & self._before_lease
        if not self._is_survivable(state, picked(seated(state), share)):
            return None
        return picked(sorted(chips), share)

    def _wait_for_new(
        self, before: set[int], timeout_s: float, meanwhile: threading.Thread | None = None
    ) -> int | None:
        """A new process of Ray's, a future chip; None after the timeout."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s and (meanwhile is None or meanwhile.is_alive()):
            new = self._machine.workers() - before
            if new:
                return min(new)
            time.sleep(0.02)  # polls other processes
        return None

    def _met(self, faults: int) -> list[FaultRecord]:
        """All records, once there are that many and none is open."""
        end_s = time.monotonic() + MET_S_MAX
        while True:
            self._clients.check()
            records = self._state().faults
            if len(records) >= faults and not any(each.stage in _OPEN for each in records):
                return list(records)
            assert time.monotonic() < end_s, f"{faults} faults were to be met: {records[-3:]}"
            time.sleep(0.1)  # polls another process

    def _lost(self, before: MachineState, chips: int) -> list[FaultRecord]:
        """The records of chips whose processes have ended by themselves."""
        records = self._met(len(before.faults) + chips)[len(before.faults) :]
        for record in records:
            assert record.fault.kind in (FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP), record
        return records

    def _wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S_MAX
    ) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            self._clients.check()
            assert time.monotonic() < end_s, self._stuck(what)
            time.sleep(0.2)  # polls another process

    def _stuck(self, what: str) -> str:
        return f"{what}\n{self._state().leases}\n{self._machine.server.log()[-3000:]}"

    def _lease_now(self, number: int) -> LeaseState:
        return next(each for each in self._state().leases if each.number == number)

    def _wait_for_lease(self, chips: Sequence[int]) -> LeaseState:
        found: list[LeaseState] = []

        def is_there() -> bool:
            leases = self._state().leases
            # A spare may have the seat of a chip of the group: the group lends its others.
            found.extend(x for x in leases if set(x.chips) <= set(chips) and x.phase != SERVING)
            return bool(found)

        self._wait_until(is_there, "a lease")
        return found[0]

    def _go_on_with_lease(self) -> None:
        """Recall the chips after enough strikes in their absence."""
        if self._lease is None:
            return
        self._strikes_in_lease += 1
        if self._strikes_in_lease > STRIKES_IN_HAND_OVER:
            self._resume()

    def _resume(self) -> None:
        number = self._lease
        assert number is not None
        self._wait_until(lambda: self._has_trained(number), "a step of training")
        self._lease = None
        if self._lease_now(number).phase != SERVING:  # or else it was called back by itself
            self._machine.client.call(control_call.RESUME, lease=number)
        self._wait_until(lambda: self._lease_now(number).phase == SERVING, "chips come back")

    def _has_trained(self, number: int) -> bool:
        """Whether the job has used the chips, or they have been recalled."""
        lease = self._lease_now(number)
        steps = lease.training.steps if lease.training else 0
        return steps > 0 or lease.phase == SERVING

    def _heal(self, heal: Heal, records: Sequence[FaultRecord]) -> None:
        state = self._state()
        broken = self._machine.size.chips - len(seated(state))
        if broken > BROKEN_MAX * self._machine.size.chips and self._lease is None:
            heal = Heal.ALL
        client = self._machine.client
        if heal is Heal.ALL or (heal is Heal.THIS and len(records) > HEALED_ONE_BY_ONE):
            client.call(control_call.HEAL)
        elif heal is Heal.THIS:
            for record in records:
                fault = record.fault
                chip = fault.chip if fault.chip >= 0 else None
                rack = fault.rack if fault.rack >= 0 else None
                client.call(control_call.HEAL, chip=chip, rack=rack)
        if heal is not Heal.NOTHING:
            self._clients.wait_for(ANSWERS_AFTER)

    # --- what has to hold -----------------------------------------------------------------------

    def _check(self, records: Sequence[FaultRecord]) -> None:
        """Check the invariants after a strike, and its accounts."""
        state = self._state()
        check_now(state)
        check_faults(state)
        for record in records:
            self._machine.events.wait_for(record.number, met_stage(record))
        if self._lease is None:
            self._wait_until(self._processes_agree, "processes and state agree")

    def _check_moved(self, records: Sequence[FaultRecord], *, since_s: float, before: int) -> None:
        """Check that requests moved since are those of the strike's faults, and ours."""
        numbers = [record.number for record in records]

        def counted() -> tuple[int, int]:
            faults = self._state().faults
            mine = [faults[number - 1].recovery for number in numbers]
            moved = read_page(self._machine.url).moved - before
            return moved, sum(each.requests_moved for each in mine if each)

        if self._lease is None:  # or else the hand-over moves some too
            self._wait_until(lambda: len(set(counted())) == 1, f"moved, credited: {counted()}")
        faults = self._state().faults
        for record in (faults[number - 1] for number in numbers):
            for name in requests_named(record):
                since_s_least = since_s - HANG_UP_S_MAX
                assert self._clients.was_under_way(name, since_s=since_s_least), (name, record)
            if record.fault.kind is FaultKind.SLOW_CHIP:
                assert record.recovery is not None
                assert record.recovery.requests_moved == 0, record

    def _processes_agree(self) -> bool:
        """Whether as many chips' processes run as chips have a seat and compute."""
        return len(self._machine.chips()) == len(seated(self._state()))

    def rest(self) -> None:
        """Repair everything, let every request end, and check the accounts."""
        if self._lease is not None:
            self._resume()
        self._machine.client.call(control_call.HEAL)
        self._clients.wait_for(ANSWERS_AFTER)
        self._clients.pause()
        self._wait_until(self._is_whole, "the machine is whole")
        self._wait_until(self._processes_agree, "processes and state agree")
        failure: list[AssertionError] = []

        def closes() -> bool:
            failure.clear()
            try:
                self._close_books()
            except AssertionError as error:
                failure.append(error)
            return not failure

        with contextlib.suppress(AssertionError):
            self._wait_until(closes, "the books close", timeout_s=30.0)
        if failure:
            raise failure[0]
        self.figures.rests += 1
        self._clients.go_on()

    def _is_whole(self) -> bool:
        """Whether all ranks are up: a repaired one may have to warm up."""
        self._machine.client.call(control_call.HEAL)
        return all(rank.up for rank in self._state().ranks)

    def _close_books(self) -> None:
        state, page = self._state(), read_page(self._machine.url)
        check_at_rest(state, self._before)
        check_counts(page, state, self._clients.tally, calm=self._calm)
        check_accounts(page, state)
        check_stages(self._machine.events.stages, state)
        faults = [each.recovery for each in state.faults if each.recovery]
        self.figures.faults = len(state.faults)
        self.figures.moved_requests = sum(each.requests_moved for each in faults)
        self.figures.training_steps = sum(x.training.steps for x in state.leases if x.training)
        self.figures.lease_moved_requests = sum(x.moved_requests for x in state.leases)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
