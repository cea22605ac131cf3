"""A plan's replicas together behind routers."""

import shlex
import time
from dataclasses import replace

import pytest
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from emulator.memory.chip_contents import HbmTerms
from emulator.specs.assumptions import with_assumptions
from emulator.specs.calibration import ROOFLINE
from emulator.specs.precisions import with_kv_dtype
from loadgen.measures.slo import Slo
from serving.analysis.plan.class_demand import LIMITS_LONG, ClassesDemand, PlannedClass
from serving.analysis.plan.plan import plan
from serving.analysis.plan.plan_check import check_size, deployment_of
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_race import LAST_TIMES, Race, option_terms
from serving.analysis.plan.plan_routers import (
    RouterRace,
    RouterRun,
    is_routed,
    router_task,
    routers_of,
)
from serving.analysis.plan.plan_routers_report import (
    router_data,
    router_line,
    router_rows,
    serve_words,
)
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import TermCheck
from serving.analysis.plan.timed_run import OutOfTime
from serving.analysis.steady_state.sweep import Task
from serving.commands import serve
from serving.commands.serve_arguments import resolve_arguments
from serving.commands.serve_replicas import ServiceOptions
from serving.policy.routing import ROUTERS
from serving.server.replicas import replica_service
from serving.server.replicas.replica_service import ServiceSettings
from serving.settings import Settings
from serving.simulator import THIS_PROCESS, ReplicaSet, simulate
from serving.traffic.engine_limits import BatchLimits, SchedulerLimits
from tests.e2e.server_process import free_port
from tests.serving.analysis.plan.planned import DEMAND, MODEL, QUESTION, SWEEP, SYSTEM, question
from tests.serving.analysis.plan.test_session_demand import demand, task
from tests.serving.commands.serve_flags import parse

pytestmark = pytest.mark.long

(ONE_CHIP,) = [each for each in SWEEP.tasks() if each[1].partition.chips == 1]
SESSIONS = question(demand=demand(rate_per_s=40.0), sweep=task().sweep)
LIGHT = question(demand=demand(rate_per_s=8.0), sweep=task().sweep)
FAST = question(demand=DEMAND.sped_up(2.0), slo=Slo.parse("ttft=300ms,tpot=20ms@p95"))


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


@pytest.mark.slow
def test_every_router_gets_the_same_requests_and_the_chosen_comes_first_then_the_best() -> None:
    found = routed(LIGHT, 2)
    requests = {run.check.requests for run in found.runs}
    late = [
        max((term.reached_s or 1e9) / term.limit_s for term in run.check.terms)
        for run in found.runs[1:]
        if run.check.meets
    ]

    assert {run.router for run in found.runs} == {*ROUTERS}
    assert len(requests) == 1
    assert len(late) == 2
    assert late == sorted(late)
    # Whoever goes by prefixes keeps a session where its history is.
    hits = {run.router: run.check.hit_share or 0.0 for run in found.runs}
    assert hits["prefix-aware"] > hits["round-robin"]


@pytest.mark.slow
def test_behind_the_chosen_router_it_is_sought_how_many_replicas_are_enough() -> None:
    plenty = routed(FAST, 8)
    assert plenty.chosen.check.surely_meets
    assert plenty.enough is not None
    assert plenty.enough.replicas < 8
    (line,) = router_line(plenty)
    chips = f"{plenty.enough.replicas} replicas ({plenty.enough.chips} chips) seem to keep"
    assert chips in line
    rows = [*router_rows(FAST, setting(FAST, 8), plenty)]
    assert rows[-2].startswith("the plan's 8 chips are for requests dealt out at random")
    assert f"{plenty.enough.chips} chips by one run alone" in rows[-2]

    few = routed(FAST, plenty.enough.replicas - 1)
    assert not few.chosen.check.surely_meets
    assert few.enough is None or few.enough.replicas >= plenty.enough.replicas


@pytest.mark.slow
def test_where_routers_do_the_same_the_servers_own_stays() -> None:
    idle = question(demand=replace(DEMAND, rate_per_s=20.0), slo=Slo.parse("ttft=1s,tpot=40ms@p90"))
    found = routed(idle, 6)
    (line,) = router_line(found)

    assert not found.makes_difference
    assert found.chosen.router == ServiceOptions().router
    assert line.startswith("router: no router makes a difference; behind prefix-aware: ")
    data = router_data(found)
    assert data is not None
    assert not data["makes_difference"]


def test_routers_that_differ_by_more_than_their_runs_are_told_apart() -> None:
    found = routed(SESSIONS, 2)
    best, *_, worst = found.runs
    term = best.check.terms[0]
    assert term.again is not None
    slow_s = 2 * term.again.most_s
    slow = replace(term, reached_s=slow_s, again=replace(term.again, least_s=slow_s))
    near = replace(term, reached_s=(term.again.least_s + term.again.most_s) / 2)
    others = best.check.terms[1:]

    def run(of: TermCheck) -> RouterRun:
        return replace(worst, check=replace(best.check, terms=(of, *others)))

    assert not best.differs_from(best)
    assert best.differs_from(run(slow))
    assert run(slow).differs_from(best)
    assert not best.differs_from(run(near))
    many, few = (
        run(replace(term, share=share, share_low=share - 0.1, share_high=share + 0.1))
        for share in (0.5, 0.8)
    )
    assert many.differs_from(few)
    assert few.differs_from(many)


def test_the_time_ends_a_race_before_its_routers_or_before_its_sizes() -> None:
    race = Race(FAST, THIS_PROCESS, lambda _: None, ends_s=time.monotonic())
    with pytest.raises(OutOfTime):
        routers_of(FAST, setting(FAST, 8), race, THIS_PROCESS)

    said: list[str] = []

    def progress(words: str) -> None:
        said.append(words)
        if "enough" in words:
            race.ends_s = time.monotonic()

    race = Race(FAST, THIS_PROCESS, progress)
    found = routers_of(FAST, setting(FAST, 8), race, THIS_PROCESS)
    assert found is not None
    assert len(found.runs) == len(ROUTERS)
    assert (found.enough, found.is_whole) == (None, False)
    assert any("behind 3 routers" in words for words in said)
    (line,) = router_line(found)
    assert line.endswith("was not found: the time was over (--budget)")


@pytest.mark.slow
def test_headroom_comes_before_the_routers() -> None:
    said: list[str] = []
    search = SearchTerms(policies=("capped:64",), tries=1)
    found = plan(question(search=search, pools=False), progress=said.append)
    headroom, routers = (
        next(place for place, words in enumerate(said) if part in words)
        for part in ("headroom", "behind 3 routers")
    )

    assert headroom < routers
    assert found.margins is not None
    assert found.routers is not None


def test_behind_a_router_classes_are_judged_as_long_as_one_replica_is() -> None:
    classes = [
        PlannedClass(
            name=name,
            rate_per_s=100.0,
            lengths=DEMAND.lengths,
            words="short ones",
            slo=Slo.parse(f"ttft={limit},tpot=20ms@p90"),
        )
        for name, limit in (("chat", "1s"), ("batch", "3s"))
    ]
    demand = ClassesDemand.of(classes, context_tokens=MODEL.max_context_tokens, seed=1)
    asked = question(demand=demand, slo=demand.slo)
    race = Race(asked, THIS_PROCESS, lambda _: None)
    four = setting(asked, 4)

    together = router_task(asked, four, race, "round-robin").terms.judged
    alone = race.task(four, judged=LAST_TIMES * asked.check.judged).terms.judged
    assert together == LIMITS_LONG * 200 * 3
    assert together == pytest.approx(4 * alone, abs=4)


@pytest.mark.slow
def test_a_units_engines_for_prompts_are_tried_behind_routers() -> None:
    (task_of,) = [each for each in SESSIONS.sweep.tasks() if each[1].partition.chips == 1]
    alone = setting(SESSIONS, 1, task_of)
    engines = replace(alone.option.candidate, replicas=2)
    point = replace(alone.option.point, candidate=engines, prefill=engines)
    option = replace(alone.option, point=point)
    pooled = replace(alone, option=option)
    race = Race(SESSIONS, THIS_PROCESS, lambda _: None)
    found = routers_of(SESSIONS, pooled, race, THIS_PROCESS)

    assert found is not None
    assert found.of_prompts
    assert found.enough is None
    assert {run.check.prefill for run in found.runs} == {engines}
    (line,) = router_line(found)
    assert "for prompts" in line
    assert "replicas" not in line
    assert not any("served by" in row for row in router_rows(SESSIONS, pooled, found))


def test_one_engine_has_no_router() -> None:
    assert not is_routed(SESSIONS, setting(SESSIONS, 1))
    race = Race(SESSIONS, THIS_PROCESS, lambda _: None)
    assert routers_of(SESSIONS, setting(SESSIONS, 1), race, THIS_PROCESS) is None
    assert [*router_line(None)] == []
    assert router_data(None) is None


def served(words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, SchedulerLimits]:
    """What a server that is started so has; its own checks see the words, and nothing starts."""
    started: list[ServiceSettings] = []

    def start(settings: ServiceSettings) -> int:
        started.append(settings)
        return 7

    monkeypatch.setattr(replica_service, "serve_replicas", start)
    name, command, *given = shlex.split(words)
    assert (name, command) == ("ultraserve", "serve")
    args = parse(*given, "--port", str(free_port()), "--control-port", "0")
    args.words = given
    assert serve.run(args) == 7
    assert len(started) == 1
    settings, _ = resolve_arguments(args, {})
    vllm = make_arg_parser(FlexibleArgumentParser()).parse_args(args.unknown)
    caching = vllm.enable_prefix_caching is not False
    return settings, SchedulerLimits(
        prefill_policy=settings.prefill_policy,
        max_num_seqs=vllm.max_num_seqs,
        max_num_batched_tokens=vllm.max_num_batched_tokens,
        block_tokens=vllm.block_size or SchedulerLimits.block_tokens,
        max_model_len=vllm.max_model_len,
        prefix_caching=caching,
        scheduling_policy=vllm.scheduling_policy,
        long_prefill_token_threshold=vllm.long_prefill_token_threshold,
    )


@pytest.mark.parametrize(
    "schedulers",
    [
        SchedulerLimits(max_num_seqs=64),
        SchedulerLimits(
            max_num_seqs=32,
            max_num_batched_tokens=1_024,
            block_tokens=64,
            max_model_len=8_192,
            prefix_caching=False,
            scheduling_policy="priority",
            long_prefill_token_threshold=512,
        ),
    ],
)
def test_the_printed_command_serves_the_plan(
    schedulers: SchedulerLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    assumptions = ("hop_ns=230ns", "idle_watts=-10%")
    asked = question(
        sweep=replace(SWEEP, system=with_assumptions(SYSTEM, assumptions)),
        check=replace(QUESTION.check, schedulers=schedulers),
        assumptions=assumptions,
    )
    of = replace(setting(asked, 2), policy="balanced:64:256:1024")
    settings, limits = served(serve_words(asked, of, "least-loaded"), monkeypatch)

    assert limits == replace(schedulers, prefill_policy=of.policy)
    assert tuple(settings.assumptions) == assumptions
    assert settings.calibration == ROOFLINE.name
    partition = settings.partition(asked.sweep.system)
    assert partition == of.option.candidate.partition
    assert settings.model == MODEL.name


def test_searched_limits_formats_and_hbm_are_in_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = replace(
        SWEEP,
        model=with_kv_dtype("fp8", MODEL, SYSTEM.chip),
        precisions=("fp8",),
        terms=HbmTerms(utilization=0.9),
        routing="zipf:0.5",
    )
    asked = question(sweep=sweep)
    other = BatchLimits(max_num_seqs=16, max_num_batched_tokens=512)
    (of_fp8,) = [each for each in sweep.tasks() if each[1].partition.chips == 1]
    of = replace(setting(asked, 2, of_fp8), limits=other)
    words = serve_words(asked, of, "round-robin")
    settings, limits = served(words, monkeypatch)

    assert limits.batch == other
    assert (settings.quantization, settings.kv_cache_dtype) == ("fp8", "fp8")
    assert settings.routing == "zipf:0.5"
    assert "--gpu-memory-utilization 0.9" in words


def test_the_section_names_each_router_and_then_the_command() -> None:
    found = routed(SESSIONS, 2)
    *rows, own, command = router_rows(SESSIONS, setting(SESSIONS, 2), found)

    assert [row.split(":")[0] for row in rows] == [run.router for run in found.runs]
    assert own.startswith("the plan's 2 chips")
    words = serve_words(SESSIONS, setting(SESSIONS, 2), found.chosen.router)
    assert command == f"served by: {words}"
    data = router_data(found)
    assert data is not None
    assert data["router"] == found.chosen.router
