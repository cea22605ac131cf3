"""No run is made twice, and what is made of it is what a new one would give."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from serving.analysis.plan import kept_runs
from serving.analysis.plan.kept_runs import KeptRuns
from serving.analysis.plan.plan_check import check_by_seed, check_in_turn, check_sizes
from serving.analysis.plan.plan_options import OptionTerms
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import size_task, task_anew
from serving.simulator import THIS_PROCESS, SimulationWorkers
from serving.simulator.simulation_workers import Result, Task
from tests.serving.analysis.plan.planned import QUESTION, SWEEP

TERMS = OptionTerms.of(QUESTION.sweep, QUESTION.demand, QUESTION.slo, seats=64)


class Counted(SimulationWorkers):
    made = 0

    def results(
        self, simulate: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        self.made += len(tasks)
        return super().results(simulate, tasks)


def setting() -> Setting:
    option = TERMS.option(next(iter(SWEEP.tasks())))
    assert option is not None
    return Setting(option=option, policy="capped:64", replicas=64)


@pytest.mark.long
def test_the_seed_that_tried_a_setting_is_not_run_again_when_it_is_judged_anew() -> None:
    counted = Counted()
    workers, task = KeptRuns(counted), task_anew(QUESTION, setting())
    seeds = task.terms.seeds
    ((_, may_be_sure),) = check_by_seed([task], seeds[0], workers)
    assert may_be_sure
    assert counted.made == 1

    found = check_in_turn([(task, seeds)], workers)

    assert counted.made == len(seeds)
    assert found == check_in_turn([(task, seeds)], THIS_PROCESS)


def test_heats_of_as_many_requests_are_one() -> None:
    counted = Counted()
    workers = KeptRuns(counted)
    task = size_task(QUESTION, setting(), judged=QUESTION.check.judged)
    other = replace(task, terms=replace(task.terms, judged=task.terms.judged + 1))

    first, again, longer = check_sizes([task, task, other], workers)

    assert first == again == check_sizes([task], workers)[0]
    assert longer.requests == first.requests + 1
    assert counted.made == 2


def test_what_is_kept_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "KEPT_RUNS", 1)
    counted = Counted()
    workers = KeptRuns(counted)
    task = size_task(QUESTION, setting(), judged=QUESTION.check.judged)
    other = replace(task, terms=replace(task.terms, seed=task.terms.seed + 1))

    check_sizes([task, other], workers)
    check_sizes([other], workers)
    assert counted.made == 2
    check_sizes([task], workers)
    assert counted.made == 3
