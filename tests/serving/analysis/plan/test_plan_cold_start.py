"""Cold starts: how long they take, what is lost meanwhile, and how many to keep warm."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from loadgen.measures.slo import Slo
from loadgen.workloads.traffic import PromptBlocks, Traffic
from reporting.plain_text import document_lines
from serving.analysis.plan import plan_cold_start
from serving.analysis.plan.class_demand import ClassesDemand, PlannedClass
from serving.analysis.plan.cold_start import cold_start_of
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_check import SizeTask, deployment_of
from serving.analysis.plan.plan_cold_start import (
    ColdStartTerms,
    GapCase,
    LimitShares,
    PlanColdStart,
    cold_starts_of,
)
from serving.analysis.plan.plan_demand import TraceDemand
from serving.analysis.plan.plan_difference import PlanAnswer, what_if_data, with_what_if
from serving.analysis.plan.plan_outlook import PlanOutlook
from serving.analysis.plan.plan_report import plan_document
from serving.analysis.plan.timed_run import OutOfTime
from serving.analysis.steady_state.partitions import PartitionCandidate, PartitionFilter
from serving.simulator import THIS_PROCESS, ReplicaSet, TimedCall, simulate
from serving.simulator.simulated_machine import machine_of
from serving.wire.control_call import HealRequest, InjectRequest
from tests.serving.analysis.plan.planned import CHECK, DEMAND, MODEL, QUESTION, SWEEP, question

pytestmark = pytest.mark.long
DRIVES = 28e9  # bytes/s of a tray


def candidate(chips: int) -> PartitionCandidate:
    sweep = replace(SWEEP, asked=PartitionFilter(chips=(chips,), tp=(1,), ep=(chips,), lnc=(2,)))
    return sweep.tasks()[0][1]


def test_one_chip_reads_the_whole_model_over_its_trays_drives() -> None:
    start = cold_start_of(SWEEP, "stored", [candidate(1)], start_s=30.0)

    assert start.read_bytes == MODEL.weight_bytes
    assert start.read_s == pytest.approx(MODEL.weight_bytes / DRIVES)
    assert start.tray_rate.assumed
    assert 0 < start.warm_up_s < 0.1
    assert start.total_s == 30.0 + start.read_s + start.warm_up_s


def test_replicas_that_start_at_once_share_a_trays_drives_and_no_more() -> None:
    one, three, four, nine, thousand = (
        cold_start_of(SWEEP, "stored", [candidate(1)], start_s=0.0, replicas=count).read_s
        for count in (1, 3, 4, 9, 1_000)
    )

    assert three == pytest.approx(3 * one)
    assert four == nine == thousand == pytest.approx(4 * one)


def test_a_replica_reads_what_a_running_machine_reads_when_its_weights_change() -> None:
    engine = candidate(8)
    machine = machine_of(SWEEP.cost_model("stored", engine))
    start = cold_start_of(SWEEP, "stored", [engine], start_s=0.0)

    assert start.read_s == pytest.approx(machine.renewal(range(8)).duration_ns / 1e9)
    assert start.read_bytes == machine.renewal(range(8)).bytes_storage


def test_a_unit_of_pools_reads_the_weights_of_each_engine() -> None:
    prompts, decodes = candidate(1), candidate(4)
    alone = [cold_start_of(SWEEP, "stored", [each], start_s=0.0) for each in (prompts, decodes)]
    unit = cold_start_of(SWEEP, "stored", [prompts, prompts, decodes], start_s=0.0)

    assert unit.read_bytes == 2 * alone[0].read_bytes + alone[1].read_bytes
    assert unit.warm_up_s == max(each.warm_up_s for each in alone)


@pytest.mark.parametrize(
    ("terms", "field"),
    [({"start_s": -1.0}, "start-seconds"), ({"start_s": 1.0, "surge": 0.0}, "surge")],
)
def test_impossible_terms_are_refused(terms: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ColdStartTerms(**terms)


@given(enough=st.integers(0, 60), at_most=st.integers(1, 50), lasts=st.integers(1, 30))
def test_the_fewest_warm_replicas_are_found_by_few_cases(
    enough: int, at_most: int, lasts: int
) -> None:
    asked: list[int] = []

    def case(warm: int) -> GapCase:
        if len(asked) == lasts:
            raise OutOfTime
        asked.append(warm)
        share = 1.0 if warm >= enough else 0.5
        limit = LimitShares(name="ttft", percentile=99.0, during=share, after=1.0)
        return GapCase(warm=warm, before=9, during=8, after=9, limits=(limit,))

    cases, is_whole = plan_cold_start._fewest_warm(case, at_most)
    kept = [each.warm for each in cases if each.kept]
    assert [each.warm for each in cases] == sorted(set(asked))
    assert len(asked) == len(cases) <= 14
    assert max(asked) <= at_most
    if is_whole:
        assert (min(kept) == enough) if enough <= at_most else not kept


def of_two(rate_per_s: float) -> SizeTask:
    return SizeTask(
        sweep=SWEEP,
        precision="stored",
        candidate=candidate(1),
        demand=replace(DEMAND, rate_per_s=rate_per_s),
        slo=QUESTION.slo,
        terms=replace(CHECK, early_end=False),
        replicas=2,
        lead_s=1.0,
        most_requests_per_s=1e9,
    )


def shares_of_two_machines(task: SizeTask, gap_s: float, seed: int) -> list[float]:
    """TTFT kept until a lost replica is back and for as long again, both replicas simulated.

    The machine's own fault and repair; an engine that has no chip fails what it runs. The router
    knows when it is back.
    """
    (whole,) = task.demand.shares(
        1, judged=round(task.demand.peak_rate_per_s * gap_s), lead_s=1.0 + gap_s, seed=seed
    )
    at_s, begin_s = whole.traffic.arrival_s, whole.warmup_s
    chance = np.random.default_rng(seed)

    def router(request: int, engines: object) -> int:
        is_gap = begin_s <= at_s[request] < begin_s + gap_s
        return 0 if is_gap else int(chance.integers(len(engines)))  # type: ignore[arg-type]

    fault = Fault(kind=FaultKind.LOSE_CHIP, chip=0)
    run = simulate(
        replace(deployment_of(task, whole.traffic), replicas=ReplicaSet(count=2, router=router)),
        whole.traffic,
        calls=[
            TimedCall(at_s=begin_s, call=InjectRequest(fault=fault), replica=1),
            TimedCall(at_s=begin_s + 1.0, call=HealRequest(chip=0), replica=1),
        ],
    )
    kept = ~run.served.missed(task.slo.bounds[0])
    return [
        float(kept[(at_s >= from_s) & (at_s < from_s + gap_s)].mean())
        for from_s in (begin_s, begin_s + gap_s)
    ]


@pytest.mark.slow
def test_one_replicas_share_says_what_two_machines_with_a_fault_and_a_repair_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_cold_start, "_running", lambda *given: given[1].first(0))
    task = of_two(54.0)  # a little more than one can
    start = cold_start_of(SWEEP, "stored", [task.candidate], start_s=1.0)
    case = GapCase(warm=0, before=2, during=1, after=2)
    runs = [
        plan_cold_start._gap_run(
            plan_cold_start._GapTask(
                task=task, case=case, factor=1.0, gap_s=start.total_s, seed=seed
            )
        )
        for seed in range(12)
    ]
    ttft = plan_cold_start._with_shares(case, task.slo, runs).limits[0]
    exact = np.mean(
        [shares_of_two_machines(task, start.total_s, seed) for seed in (10, 11)], axis=0
    )

    assert 0.1 < ttft.during < 0.5  # neither all nor none
    assert ttft.during == pytest.approx(exact[0], abs=0.15)
    assert ttft.after == pytest.approx(exact[1], abs=0.2)


@pytest.fixture(scope="module")
def found() -> Plan:
    """Several replicas of one chip each."""
    one_chip = replace(SWEEP, asked=PartitionFilter(chips=(1,), lnc=(2,)))
    busy = replace(DEMAND, rate_per_s=120.0)
    few = replace(CHECK, judged=60)
    return plan(question(sweep=one_chip, check=few, demand=busy, pools=False, margins=False))


@pytest.fixture(scope="module")
def colds(found: Plan) -> PlanColdStart:
    terms = ColdStartTerms(start_s=3.0, surge=1.0)
    return cold_starts_of(found, terms, workers=THIS_PROCESS)


def test_a_lost_replica_and_a_surge_are_simulated_for_as_long_as_a_start_takes(
    found: Plan, colds: PlanColdStart
) -> None:
    lost, surge = colds.gaps
    replicas = found.fleet.replicas

    assert lost.gap_s == colds.one.total_s
    assert lost.requests == pytest.approx(120.0 * lost.gap_s)
    assert lost.cases[0].during == replicas - 1
    assert lost.cases[0].begun_anew > 0
    assert surge.gap_s > lost.gap_s  # more replicas on the same drives
    assert surge.requests == pytest.approx(240.0 * surge.gap_s)
    assert (surge.cases[0].during, surge.cases[0].after) == (replicas, 2 * replicas)
    assert not surge.cases[0].kept
    for gap in colds.gaps:
        assert gap.is_whole
        assert gap.fewest is not None
        assert gap.fewest.simulated >= 60
        assert gap.fewest.kept
        assert all(not each.kept for each in gap.cases if each.warm < gap.fewest.warm)


def test_of_one_replica_none_is_left(found: Plan) -> None:
    single = replace(found, fleet=replace(found.fleet, replicas=1))
    terms = ColdStartTerms(start_s=1.0)
    (lost,) = cold_starts_of(single, terms, workers=THIS_PROCESS, ends_s=time.monotonic()).gaps

    assert lost.cases == (GapCase(warm=0, before=1, during=0, after=1),)
    assert not lost.cases[0].kept
    assert not lost.is_whole
    answer = PlanAnswer(
        plan=found,
        difference=None,
        sensitivity=None,
        outlook=PlanOutlook(cold_start=PlanColdStart(one=cold_of(found), gaps=(lost,))),
    )
    text = "\n".join(document_lines(with_what_if(plan_document(found), answer)))
    assert "a replica lost: none is left" in text
    assert "no number kept warm that was tried keeps it" in text


def cold_of(found: Plan) -> object:
    return cold_start_of(
        found.question.sweep, "stored", [found.choice.check.candidate], start_s=1.0
    )


def test_cold_starts_stand_in_the_report_and_the_data(found: Plan, colds: PlanColdStart) -> None:
    answer = PlanAnswer(
        plan=found, difference=None, sensitivity=None, outlook=PlanOutlook(cold_start=colds)
    )
    text = "\n".join(document_lines(with_what_if(plan_document(found), answer)))
    data = what_if_data(answer)["cold_start"]

    assert "3 s until its processes run and compiled models are loaded (assumed" in text
    assert "28 GB/s a tray (assumed)" in text
    assert "a replica lost: " in text
    assert "100 % more at once: the target is MISSED" in text
    assert data["replica_s"] == colds.one.total_s
    assert [each["replicas_kept_warm"] for each in data["gaps"]] == [
        gap.fewest and gap.fewest.warm for gap in colds.gaps
    ]


def test_requests_that_ran_on_a_lost_replica_all_begin_when_it_is_lost() -> None:
    task = of_two(40.0)
    lost = Traffic(
        arrival_s=np.array([0.0, 0.9, 0.99]),
        prompt_tokens=np.array([400, 400, 400]),
        output_tokens=np.array([2, 200, 16]),
    )
    running = plan_cold_start._running(deployment_of(task, lost), lost, 1.0, task)

    assert running.arrival_s.tolist() == [1.0, 1.0]  # the first one has ended
    assert running.output_tokens.tolist() == [200, 16]


def test_each_class_is_judged_by_its_own_requests() -> None:
    classes = [
        PlannedClass(
            name=name,
            rate_per_s=rate,
            lengths=DEMAND.lengths,
            words="short ones",
            slo=Slo.parse(slo),
        )
        for name, rate, slo in (("chat", 60.0, "ttft=300ms@p90"), ("batch", 20.0, "ttft=1us@p90"))
    ]
    demand = ClassesDemand.of(classes, context_tokens=MODEL.max_context_tokens, seed=1)
    task = replace(of_two(80.0), demand=demand, slo=demand.slo)
    case = GapCase(warm=1, before=4, during=3, after=4)
    run = plan_cold_start._gap_run(
        plan_cold_start._GapTask(task=task, case=case, factor=1.0, gap_s=4.0, seed=1)
    )
    chat, batch = plan_cold_start._with_shares(case, task.slo, [run]).limits

    assert (chat.name, batch.name) == ("chat ttft", "batch ttft")
    assert chat.during > 0.5
    assert batch.during == 0.0
    assert sum(map(len, run.during)) == run.simulated  # each request is of one class
    assert len(run.during[0]) > len(run.during[1])


def test_a_conversation_stays_on_one_replica() -> None:
    turns = 3_000
    conversation = np.arange(turns) % 300
    blocks = PromptBlocks.of(
        [[each] for each in conversation.tolist()],
        tokens=64,
        prompt_tokens=np.full(turns, 64),
    )
    traffic = Traffic(
        arrival_s=np.arange(turns) / 100.0,
        prompt_tokens=np.full(turns, 64),
        output_tokens=np.where(np.arange(turns) < 2_000, 2, 3),  # the peak comes late
        blocks=blocks,
    )
    demand = TraceDemand(traffic=traffic, window_s=5.0, source="turns")
    task = replace(of_two(1.0), demand=demand)
    own, other, begin_s = plan_cold_start._parts(
        plan_cold_start._GapTask(
            task=task,
            case=GapCase(warm=0, before=2, during=1, after=2),
            factor=1.0,
            gap_s=5.0,
            seed=1,
        )
    )
    ours, theirs = (
        {
            int(each.blocks.names[place])
            for place in each.blocks.begin[:-1][each.arrival_s < begin_s]
        }
        for each in (own.traffic, other.traffic)
        if each.blocks is not None
    )
    assert ours
    assert not ours & theirs
