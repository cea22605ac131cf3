"""Admitted share of the admissible work within a target, by search in virtual time.

The best admission is taken to be the most tokens (of prompts and answers) admitted, for the same
requests and with a p99 TTFT within the target, by any of these:

- every bound on waiting prompt tokens, on a grid of a fifth of an octave, alone and with bounds on
  the sequences inside: chosen with hindsight for this one sequence of arrivals;
- with `oracle=True`, an admission that admits a request if and only if the simulation, cloned at
  that moment, shows it and all before it in time.

None looks at a request's size before it decides, as the product does not: preferring short prompts
would count more requests. No proof of an upper bound, but near one: the oracle leaves no space that
it can see, and the bounds know the future.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.server.gateway.engine_times import backlog_times
from serving.traffic.engine_limits import EngineLimits
from tests.serving.policy.admission.gates import AdmissionGate, BoundGate
from tests.serving.policy.admission.virtual_clients import ClosedLoop, Mix, OpenLoop, Together
from tests.serving.policy.admission.virtual_engine import (
    Call,
    Clients,
    Engine,
    Gate,
    Refusal,
    VirtualEngine,
    ttfts_s,
)

WARM_UP_S, PAUSE_S = 10.0, 3.0
"""Before a warm measurement: time at nine tenths of the capacity, then without load."""

_WARM_LOAD = 0.9

_SEATS_ENOUGH = 256
_LATE_SHARE = 0.01  # of those that enter, whom a p99 leaves out
_CLOSED_LATE_MAX = 60  # more than 1 % of all that enter in any run of a closed loop here


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An engine, its traffic and the target; `clients` None: an open loop."""

    name: str
    mix: Mix
    chips: int = 1
    seats: int = 256
    target_s: float = 1.0
    model: str = "qwen3-30b-a3b"
    closed: bool = False
    comes_back: int = 0
    measured_s: float = 12.0
    seed: int = 1
    known_capacity_per_s: float | None = None

    @cached_property
    def engine(self) -> Engine:
        """Trainium3 chips, a rank each."""
        system = system_by_name("trn3-nl72x2")
        costs = StepCostModel(
            system,
            model_by_name(self.model),
            Partition(chips=self.chips, tp=1, ep=self.chips, lnc=2),
            calibration=calibration_for(system.chip.name, name="fitted"),
        )
        limits = EngineLimits(
            max_num_batched_tokens=8_192,
            max_num_seqs=self.seats,
            kv_blocks_per_rank=16_000,
            block_tokens=32,
            prefix_caching=False,
        )
        return Engine(costs=costs, limits=limits)

    @cached_property
    def capacity(self) -> Capacity:
        """The product's capacity of a live engine."""
        engine, limits = self.engine, self.engine.limits
        return Capacity(
            seats=limits.max_num_seqs * engine.ranks,
            kv_tokens=limits.kv_blocks_per_rank * limits.block_tokens * engine.ranks,
            prefill_tokens_per_step=limits.max_num_batched_tokens * engine.ranks,
            ranks=engine.ranks,
            backlog_times=backlog_times(
                engine.costs,
                parse_prefill_policy(limits.prefill_policy),
                seats=limits.max_num_seqs,
                step_tokens=limits.max_num_batched_tokens,
            ),
        )

    @cached_property
    def capacity_per_s(self) -> float:
        """Requests per second of the mix with as many tokens as the best bound admits, within the
        target, of an excess.
        """
        if self.known_capacity_per_s is not None:
            return self.known_capacity_per_s
        from_s, until_s = 5.0, 15.0  # by then it is full
        many = OpenLoop(mix=self.mix, per_s=60.0 * self.chips, until_s=until_s, seed=99)
        mean_tokens = np.mean([call.tokens for call in many.first()])
        found = self._search(lambda: many, from_s, until_s)
        return found.tokens / float(mean_tokens) / (until_s - from_s)

    def load(self, times: float, *, warm: bool) -> Callable[[], Clients]:
        """Clients of that many times the capacity, fresh at each call."""
        begin_s = WARM_UP_S + PAUSE_S if warm else 0.0
        per_s = times * self.capacity_per_s

        def clients() -> Clients:
            groups: list[OpenLoop | ClosedLoop] = []
            if warm:
                early_per_s = _WARM_LOAD * self.capacity_per_s
                groups.append(
                    OpenLoop(mix=self.mix, per_s=early_per_s, until_s=WARM_UP_S, seed=self.seed + 7)
                )
            if self.closed:
                # Each has one inside for about as long as an answer takes.
                stay_s = 0.5 * self.target_s + 0.033 * self.mix.answer_tokens
                groups.append(
                    ClosedLoop(
                        mix=self.mix,
                        clients=max(1, round(per_s * stay_s)),
                        seed=self.seed,
                        from_s=begin_s,
                    )
                )
            else:
                groups.append(
                    OpenLoop(
                        mix=self.mix,
                        per_s=per_s,
                        from_s=begin_s,
                        until_s=begin_s + self.measured_s,
                        seed=self.seed,
                        comes_back=self.comes_back,
                    )
                )
            return Together(groups)

        return clients

    def measure(
        self,
        times: float,
        *,
        warm: bool,
        oracle: bool = False,
        waiting_tokens: Sequence[float] = (),
    ) -> "Cell":
        """The product and the best, side by side; with given bounds, the best of those."""
        begin_s = WARM_UP_S + PAUSE_S if warm else 0.0
        end_s = begin_s + self.measured_s
        clients = self.load(times, warm=warm)
        admission = Admission(AdmissionLimits(ttft_target_s=self.target_s), self.capacity)
        product = self._run(AdmissionGate(admission), clients(), begin_s, end_s)
        best = self._search(clients, begin_s, end_s, waiting_tokens)
        if oracle:
            gate = OracleGate(self.target_s)
            run = VirtualEngine(self.engine, gate, clients())
            gate.run = run
            run.run(end_s)
            knowing = _served(run.calls, begin_s, end_s)
            if knowing.p99_s <= self.target_s and knowing.tokens > best.tokens:
                best = replace(knowing, by="oracle")
        return Cell(times=times, warm=warm, target_s=self.target_s, product=product, best=best)

    def _run(
        self, gate: Gate, clients: Clients, from_s: float, until_s: float, by: str = "product"
    ) -> "Served":
        run = VirtualEngine(self.engine, gate, clients)
        try:
            run.run(until_s)
        except _TooLateError:
            return Served(tokens=0, admitted=0, refused=0, p99_s=math.inf, by=by)
        return replace(_served(run.calls, from_s, until_s), by=by)

    def _search(
        self,
        clients: Callable[[], Clients],
        from_s: float,
        until_s: float,
        waiting_tokens: Sequence[float] = (),
    ) -> "Served":
        """The best of all bounds: of octaves first, then around the best octave."""
        best: Served | None = None
        found: BoundGate | None = None
        # Nobody enters twice, but in a closed loop. A percentile lies between two waits.
        come = sum(from_s <= call.at_s < until_s for call in clients().first())
        late_max = _CLOSED_LATE_MAX if self.closed else _LATE_SHARE * come + 1
        given = [BoundGate(waiting_tokens_max=each) for each in waiting_tokens]
        searches = (lambda *_: iter(given),) if given else _SEARCHES
        for bounds in searches:
            for gate in bounds(self, found):
                hopeless = _Hopeless(gate, self.target_s, late_max=late_max, from_s=from_s)
                served = self._run(hopeless, clients(), from_s, until_s, by=gate.name)
                if not served.p99_s <= self.target_s:
                    continue
                if best is None or served.tokens > best.tokens:
                    best, found = served, gate
                if not served.refused:
                    return best  # nobody can let in more than all
        assert best is not None, "one request at a time is in time"
        return best


def _octaves(setting: Setting, found: BoundGate | None) -> Iterator[BoundGate]:
    del found
    for octave in range(7):
        yield BoundGate(waiting_tokens_max=setting.engine.ranks * 1_024 * 2.0**octave)


def _around(setting: Setting, found: BoundGate | None) -> Iterator[BoundGate]:
    tokens = found.waiting_tokens_max if found is not None else 1_024.0 * setting.engine.ranks
    for fifth in (-3, -2, -1, 1, 2, 3, 4):
        yield BoundGate(waiting_tokens_max=tokens * 2 ** (fifth / 5))


def _seats(setting: Setting, found: BoundGate | None) -> Iterator[BoundGate]:
    """With few seats: bounds on sequences somewhat above them, beside bounds on prompts."""
    if setting.seats >= _SEATS_ENOUGH or found is None:
        return
    for more in (0, 1, 2, 4, 8):
        for times in (0.5, 1.0, 4.0):
            yield BoundGate(
                waiting_tokens_max=times * found.waiting_tokens_max,
                sequences_max=setting.engine.ranks * (setting.seats + more),
            )


_SEARCHES = (_octaves, _around, _seats)


@dataclass(frozen=True, kw_only=True)
class Served:
    """Requests of the measured time: tokens of those admitted, and their p99."""

    tokens: int
    admitted: int
    refused: int
    p99_s: float
    by: str = "product"


@dataclass(frozen=True, kw_only=True)
class Cell:
    times: float
    warm: bool
    target_s: float
    product: Served
    best: Served

    @property
    def share(self) -> float:
        return self.product.tokens / self.best.tokens

    def holds(self, share_min: float) -> bool:
        """Whether the product admits that share of the best, and keeps the target."""
        return self.share >= share_min and self.product.p99_s <= self.target_s

    def line(self) -> str:
        return (
            f"{self.times:>5g} {'warm' if self.warm else 'cold':<5}"
            f"{self.product.admitted:>9,}{self.product.refused:>9,}{self.product.p99_s:>8.3f}"
            f"{self.best.admitted:>9,}{self.best.p99_s:>8.3f}{self.share:>8.3f}  {self.best.by}"
        )


HEADER = (
    f"{'load':>5} {'':<5}{'admitted':>9}{'refused':>9}{'p99 s':>8}{'best':>9}{'p99 s':>8}"
    f"{'share':>8}  found by"
)


class _TooLateError(Exception):
    """Too many were late for the target to be kept."""


class _Hopeless:
    """Wraps a gate until more than `late_max` that came since `from_s` are late."""

    def __init__(self, gate: Gate, target_s: float, *, late_max: float, from_s: float) -> None:
        self._gate = gate
        self._target_s = target_s
        self._late_max = late_max
        self._from_s = from_s
        self._late = 0
        self.enter, self.made, self.end = gate.enter, gate.made, gate.end

    def first_token(self, call: Call, now_s: float) -> None:
        """See `Gate`."""
        self._gate.first_token(call, now_s)
        self._late += call.at_s >= self._from_s and now_s - call.at_s > self._target_s
        if self._late > self._late_max:
            raise _TooLateError


class OracleGate:
    """Admits requests that a clone of the simulation, a forked process, shows to be in time."""

    def __init__(self, target_s: float) -> None:
        self.run: VirtualEngine | None = None
        self._target_s = target_s
        self._tried: Call | None = None  # in a clone: whom it is about

    def enter(self, call: Call) -> Refusal | None:
        """See `Gate`."""
        assert self.run is not None
        child = os.fork()
        if child == 0:
            self._tried = call
            self.run.clear()
            return None
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return None
        return Refusal(message="oracle", retry_after_s=0.1)

    def first_token(self, call: Call, now_s: float) -> None:
        """See `Gate`; a clone ends at the first late request, or at its own."""
        if self._tried is not None:
            if now_s - call.at_s > self._target_s:
                os._exit(1)
            if call is self._tried:
                os._exit(0)

    def made(self, call: Call) -> None:
        """See `Gate`."""

    def end(self, call: Call, now_s: float) -> None:
        """See `Gate`."""


def _served(calls: Iterable[Call], from_s: float, until_s: float) -> Served:
    measured = [call for call in calls if from_s <= call.at_s < until_s]
    entered = [call for call in measured if call.refused is None]
    return Served(
        tokens=sum(call.tokens for call in entered),
        admitted=len(entered),
        refused=len(measured) - len(entered),
        p99_s=float(np.percentile(ttfts_s(entered), 99)) if entered else 0.0,
    )
