"""A plan's replicas together behind routers."""

from dataclasses import replace

import pytest

from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import check_size, deployment_of
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import Race, option_terms
from serving.analysis.plan.plan_routers import RouterRace, is_routed, routers_of
from serving.analysis.plan.plan_routers_report import (
    router_data,
    router_line,
    router_rows,
    serve_words,
)
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.steady_state.sweep import Task
from serving.commands.serve_replicas import ServiceOptions
from serving.main import command_parser
from serving.policy.routing import ROUTERS
from serving.simulator import THIS_PROCESS, ReplicaSet, simulate
from tests.serving.analysis.plan.planned import DEMAND, SWEEP, question
from tests.serving.analysis.plan.test_session_demand import demand, task

pytestmark = pytest.mark.long

(ONE_CHIP,) = [each for each in SWEEP.tasks() if each[1].partition.chips == 1]
SESSIONS = question(demand=demand(rate_per_s=40.0), sweep=task().sweep)


def setting(asked: PlanQuestion, replicas: int, of: Task = ONE_CHIP) -> Setting:
    option = option_terms(asked).option(of)
    assert option is not None
    return Setting(option=option, policy="none", replicas=replicas)


def routed(asked: PlanQuestion, replicas: int) -> RouterRace:
    race = Race(asked, THIS_PROCESS, lambda _: None)
    found = routers_of(asked, setting(asked, replicas), race, THIS_PROCESS)
    assert found is not None
    return found


def test_a_router_shows_what_a_simulation_of_all_replicas_behind_it_does() -> None:
    race = Race(SESSIONS, THIS_PROCESS, lambda _: None)
    alone = race.task(setting(SESSIONS, 3), judged=300, early_end=False)
    asked = replace(alone, router="prefix-aware")
    check = check_size(asked)
    (share,) = SESSIONS.demand.shares(
        1,
        judged=asked.terms.judged,
        lead_s=asked.lead_s,
        seed=asked.terms.seed,
        before_s=asked.before_s,
    )
    deployment = deployment_of(asked, share.traffic)
    run = simulate(
        deployment, share.traffic, judged=share.judged, window_s=share.judged_s, until_s=1e9
    )

    assert deployment.replicas == ReplicaSet(count=3, router="prefix-aware")
    assert check.terms[0].reached_s == run.ttft_percentile_s(95)
    assert check.replica_chip_watts == pytest.approx(run.chip_watts / 3)
    assert check.load_share == check_size(alone).load_share


def test_every_router_gets_the_same_requests_and_the_best_is_named_first() -> None:
    found = routed(SESSIONS, 2)
    requests = {run.check.requests for run in found.runs}
    late = [run.check.terms[0].reached_s or 1e9 for run in found.runs if run.check.meets]

    assert {run.router for run in found.runs} == {*ROUTERS}
    assert len(requests) == 1
    assert late == sorted(late)
    # Whoever goes by prefixes keeps a session where its history is.
    hits = {run.router: run.check.hit_share or 0.0 for run in found.runs}
    assert hits["prefix-aware"] > hits["round-robin"]


def test_behind_the_best_router_it_is_sought_how_many_replicas_are_enough() -> None:
    asked = question(demand=DEMAND.sped_up(2.0), slo=Slo.parse("ttft=300ms,tpot=20ms@p95"))
    plenty = routed(asked, 8)
    assert plenty.best.check.surely_meets
    assert plenty.enough is not None
    assert plenty.enough.replicas < 8

    few = routed(asked, plenty.enough.replicas - 1)
    assert not few.best.check.surely_meets
    assert few.enough is None or few.enough.replicas >= plenty.enough.replicas


def test_one_engine_has_no_router() -> None:
    assert not is_routed(SESSIONS, setting(SESSIONS, 1))
    race = Race(SESSIONS, THIS_PROCESS, lambda _: None)
    assert routers_of(SESSIONS, setting(SESSIONS, 1), race, THIS_PROCESS) is None
    assert [*router_line(None)] == []
    assert router_data(None) is None


def test_the_router_is_named_with_a_command_that_serve_reads() -> None:
    found = routed(SESSIONS, 2)
    (line,) = router_line(found)
    *rows, served = router_rows(SESSIONS, setting(SESSIONS, 2), found)
    words = serve_words(SESSIONS, setting(SESSIONS, 2), found.best.router).split()[1:]
    args, for_vllm = command_parser("serve").parse_known_args(words)

    assert line.startswith(f"router: {found.best.router} is the best of 3: ")
    assert [row.split(":")[0] for row in rows] == [run.router for run in found.runs]
    assert served.endswith(" ".join(words))
    assert ServiceOptions(replicas=args.replicas, router=args.router).replicas == 2
    assert (args.chips, args.prefill_policy) == (1, "none")
    assert for_vllm == ["--max-num-seqs", "64", "--max-num-batched-tokens", "2048"]
    data = router_data(found)
    assert data is not None
    assert data["best"] == found.best.router
