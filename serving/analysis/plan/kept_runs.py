"""Workers of one question's search that make no run twice.

At high rates the requests before those that are judged decide how long a run is, so that two heats
are the same one; and the seed that refuted one setting has tried another before it is judged anew.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

from serving.analysis.plan.plan_check import SizeTask
from serving.simulator import SimulationWorkers
from serving.simulator.simulation_workers import Result, Task

KEPT_RUNS: Final = 256
"""The latest; the times of 20,000 requests are half a megabyte."""


class KeptRuns(SimulationWorkers):
    """Hands tasks of one question to `workers`, which are entered and left by their owner, and
    keeps what they find.
    """

    def __init__(self, workers: SimulationWorkers) -> None:
        super().__init__(workers.count)
        self._workers = workers
        self._runs = OrderedDict[Hashable, object]()

    def results(
        self, simulate: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        """Those of (SizeTask, seed) that are known, and of the others as they are made."""
        keys: list[Hashable] = [(simulate, _key(task)) for task in tasks]
        new = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._runs}
        found = {key: self._runs[key] for key in keys if key in self._runs}
        found |= zip(new, self._workers.results(simulate, [*new.values()]), strict=True)
        for key in new:
            self._runs[key] = found[key]
        for key in [*islice(self._runs, max(0, len(self._runs) - KEPT_RUNS))]:
            del self._runs[key]
        return (cast(Result, found[key]) for key in keys)


def _key(of_seed: object) -> Hashable:
    """What a run of one seed depends on: not how many other seeds are asked for, nor how their
    runs are judged together. All tasks have the question's demand and machine.
    """
    task, seed = cast(tuple[SizeTask, int], of_seed)
    return (
        task.precision,
        task.candidate,
        task.prefill,
        task.prompts_alone,
        task.slo.bounds,
        task.terms.schedulers,
        task.terms.judged,
        task.terms.early_end,
        task.replicas,
        task.lead_s,
        task.before_s,
        task.lost,
        task.router,
        seed,
    )
