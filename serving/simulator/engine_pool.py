"""Equal engines behind a router, and the table of the requests that they serve."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.run_log import EngineLog, LogRoom, Logs, log_room
from serving.simulator.scheduler_arrays import Records
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulated_engine import SimulatedEngine
from serving.simulator.step_run_record import Coming

if TYPE_CHECKING:
    from serving.simulator.job_cost import JobTerms


class EnginePool:
    """The replicas of one deployment; those `called` get a machine for faults and hand-overs,
    by which a `job` may get its chips.

    Tokens are logged if clients see them, unless `logs` say otherwise.
    """

    def __init__(
        self,
        deployment: SimulatedDeployment,
        traffic: Traffic,
        *,
        called: Collection[int],
        on_step: StepWatcher | None,
        seed: int = 0,
        clients_see: bool = True,
        logs: Logs = Logs.ALL,
        job: "JobTerms | None" = None,
    ) -> None:
        self._replicas = deployment.replicas
        self._arrived = 0
        made = LockstepSchedulers.replicas(
            traffic,
            deployment.limits,
            deployment.cost_model.partition.ranks,
            deployment.replicas.count,
            seed=seed,
            choices=deployment.choices,
        )
        tokens_max = None
        if clients_see and logs is Logs.ALL:
            tokens_max = int(traffic.output_tokens.sum())
        self.requests: Records = made[0].arrays.requests
        keeps = logs is not Logs.TOTALS
        self.log_room = None if logs is Logs.ALL else log_room(len(made), keeps=keeps)
        """Of all engines, if they keep no tokens."""
        self.engines = [
            SimulatedEngine(
                deployment,
                schedulers,
                EngineLog(
                    tokens_max=tokens_max,
                    idle_watts=deployment.cost_model.idle_chip_watts
                    * deployment.cost_model.partition.chips,
                    keeps=keeps,
                    clients_see=clients_see,
                    room=self._room_of(number),
                ),
                calls=number in called,
                on_step=on_step,
                job=job,
            )
            for number, schedulers in enumerate(made)
        ]

    def _room_of(self, number: int) -> LogRoom | None:
        if self.log_room is None:
            return None
        steps, counts = self.log_room
        return steps[number], counts[number]

    def make_room(self) -> None:
        """For more steps of all engines, beside each other."""
        if self.log_room is None or all(each.log.has_room for each in self.engines):
            return
        steps, counts = self.log_room
        if self.engines[0].log.keeps:
            self.log_room = np.concatenate([steps, np.zeros_like(steps)], axis=1), counts
            for number, each in enumerate(self.engines):
                each.log.steps = self.log_room[0][number]

    @property
    def shares_by_load(self) -> bool:
        """Whether its router and engines are such as `PoolRun` has."""
        by_load = len(self.engines) > 1 and self._replicas.looks_at_loads
        return (
            by_load
            and self.log_room is not None
            and all(each.can_expect and each.schedulers.is_open for each in self.engines)
        )

    @property
    def looks_at_prefixes(self) -> bool:
        """Whether its router does."""
        return self._replicas.looks_at_prefixes

    @property
    def can_expect(self) -> bool:
        """Whether `expect` may be asked: where the router looks at no load."""
        by_turns = len(self.engines) == 1 or self._replicas.takes_turns
        return by_turns and all(each.can_expect for each in self.engines)

    def expect(self, more: Coming, now_ns: int = 0) -> None:
        """Let the engines that are open take `more` requests themselves, after those expected
        already.
        """
        engines = [each for each in self.engines if each.schedulers.is_open]
        count = len(engines)
        for number in range(count):
            own = slice(number, None, count)
            engine = engines[(self._arrived + number) % count]
            engine.expect(Coming(request=more.request[own], at_ns=more.at_ns[own]), now_ns)
        self._arrived += len(more.request)

    @property
    def is_open(self) -> bool:
        """Whether an engine has an open rank."""
        return any(each.schedulers.is_open for each in self.engines)

    def others_open(self, engine: SimulatedEngine) -> bool:
        """Whether another engine has an open rank."""
        return any(each.schedulers.is_open for each in self.engines if each is not engine)

    def put(self, request: int) -> SimulatedEngine:
        """Route a request to an engine, which takes it when its step ends.

        An engine without an open rank gets none, unless no engine has one.
        """
        engines = [each for each in self.engines if each.schedulers.is_open] or self.engines
        schedulers = [each.schedulers for each in engines]
        number = self._replicas.choose(request, schedulers, arrived=self._arrived)
        self._arrived += 1
        schedulers[number].put(request, begins=not engines[number].is_busy)
        return engines[number]
