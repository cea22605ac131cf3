"""Sessions in a plan: which requests come when, which are judged, and what their caches keep."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.measures.intervals import share_estimate
from loadgen.measures.percentile import percentile
from loadgen.measures.samples import Samples
from loadgen.measures.slo import Slo
from loadgen.workloads.class_draft import draft_class
from loadgen.workloads.class_specs import workload_spec
from loadgen.workloads.planned_traffic import class_traffic
from loadgen.workloads.traffic import Sessions, Traffic
from serving.analysis.plan.plan import plan, slowed
from serving.analysis.plan.plan_check import SizeTask, check_size, deployment_of
from serving.analysis.plan.plan_task import size_task
from serving.analysis.plan.session_demand import LatestReply, SessionDemand
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import TimedCall, simulate
from serving.wire.control_call import InjectRequest
from tests.serving.analysis.plan.planned import CHECK, MODEL, SWEEP, question

pytestmark = pytest.mark.long

SLO = Slo.parse("ttft=300ms,tpot=20ms@p95")
LATEST = LatestReply(first_token_s=0.3, token_s=0.02)
(ONE_CHIP,) = [candidate for _, candidate in SWEEP.tasks() if candidate.partition.chips == 1]
FOUR_CHIPS = next(
    candidate
    for _, candidate in replace(SWEEP, asked=PartitionFilter(chips=(4,), lnc=(2,))).tasks()
)
AGENT: dict[str, Any] = {
    "input": "200",
    "output": "11",
    "turns": "4",
    "think_s": 0.5,
    "shared_prefix": (600, 1),
    "history": "served",
}


def demand(*, rate_per_s: float = 8.0, caches: bool = True, **changes: Any) -> SessionDemand:
    return SessionDemand(
        sessions_per_s=rate_per_s,
        workload=workload_spec({**AGENT, **changes}),
        latest=LATEST,
        context_tokens=MODEL.max_context_tokens,
        caches=caches,
    )


UNEVEN = demand(turns="uniform:1-6")


def test_a_turn_comes_at_the_latest_after_replies_that_just_keep_the_target_by_hand() -> None:
    # 0.3 s and 10 gaps of 20 ms a reply, then half a second.
    found = demand()

    assert LatestReply.within(SLO) == LATEST
    assert found.ramp_s == pytest.approx(3 * (0.3 + 0.2 + 0.5))
    assert found.requests_of_session == 4
    assert found.peak_rate_per_s == 32.0
    # 600 of the system's, then 200 and 11 more a turn.
    assert sorted(set(found.peak.prompt_tokens.tolist())) == [800, 1_011, 1_222, 1_433]


def test_a_request_that_waits_for_several_comes_after_the_last_of_them() -> None:
    traffic = Traffic(
        arrival_s=np.zeros(3),
        prompt_tokens=np.full(3, 10),
        output_tokens=np.array([11, 1, 1]),
        sessions=Sessions(
            after=np.array([-1, -1, 1]), think_s=np.array([0.0, 0.0, 1.0]), also=np.array([[2, 0]])
        ),
    )

    assert LATEST.after_s(traffic).tolist() == pytest.approx([0.0, 0.0, 0.5 + 1.0])


@pytest.mark.slow
def test_what_turns_share_is_what_the_turn_before_has_computed() -> None:
    found = demand()
    assert found.prefixes is not None
    cached = found.prefixes.cached_within(float("inf"))
    later = found.peak.prompt_tokens > 800

    # A later turn finds the prompt and the reply before it; a first one the system prompt.
    assert (cached[later] == found.peak.prompt_tokens[later] - 200).all()
    assert np.median(cached[~later]) == 600
    assert demand(history="planned").prefixes is not None
    assert demand(caches=False).prefixes is None


def test_sessions_that_think_long_lose_what_a_small_cache_kept() -> None:
    found = demand(think_s=60.0).prefixes
    assert found is not None

    assert found.cached_within(100.0).mean() > found.cached_within(30.0).mean()


@given(
    seed=st.integers(0, 99),
    judged=st.integers(1, 400),
    replicas=st.integers(1, 4),
    lead_s=st.floats(0.0, 5.0),
)
def test_so_many_requests_are_judged_once_sessions_have_come_for_the_ramp(
    seed: int, judged: int, replicas: int, lead_s: float
) -> None:
    found = UNEVEN
    (share,) = found.shares(replicas, judged=judged, lead_s=lead_s, seed=seed)
    come_s = share.traffic.arrival_s + LATEST.after_s(share.traffic)

    assert share.judged.sum() == judged
    assert share.warmup_s >= max(found.ramp_s, lead_s)
    assert come_s[share.judged].min() >= share.begin_s
    assert come_s[share.judged].max() == share.end_s
    between = (come_s >= share.begin_s) & (come_s < share.end_s)
    assert share.judged[between].all(), "none between them is left out"
    # Sessions go on to come until then: chance leaves no gap of 20 means.
    assert share.end_s + lead_s - 20 * replicas / 8.0 < share.traffic.arrival_s[-1]
    assert share.traffic.arrival_s[-1] <= share.end_s + lead_s


def test_a_share_is_what_the_load_generator_sends_by_the_same_seed() -> None:
    found = demand(rate_per_s=6.0)
    (share,) = found.shares(2, judged=100, lead_s=1.0, seed=7)
    sessions = int((share.traffic.sessions.after < 0).sum()) if share.traffic.sessions else 0
    spec = replace(found.workload, sessions=sessions)
    sent = class_traffic(draft_class(spec, ArrivalSpec(rate="3"), seed=7)).traffic

    assert np.allclose(share.traffic.arrival_s, sent.arrival_s, rtol=0, atol=1e-6)
    assert (share.traffic.prompt_tokens == sent.prompt_tokens).all()
    assert (share.traffic.output_tokens == sent.output_tokens).all()


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_faster_machine_in_less_time_is_the_same_run(factor: float) -> None:
    asked = question(demand=demand(), slo=SLO)
    faster = slowed(asked, factor).demand
    assert isinstance(faster, SessionDemand)

    assert faster.ramp_s == pytest.approx(demand().ramp_s / factor)
    assert faster.peak_rate_per_s == pytest.approx(factor * 32.0)
    assert demand().multiplied(factor, seed=1).ramp_s == demand().ramp_s


def task(*, caches: bool = True, judged: int = 150, **changes: Any) -> SizeTask:
    found = demand(caches=caches, **changes)
    shape = replace(
        SWEEP.shape,
        prompt_tokens=round(float(found.peak.prompt_tokens.mean())),
        output_tokens=11,
    )
    shape = found.prefixes.shape(shape) if found.prefixes else shape
    return SizeTask(
        sweep=replace(SWEEP, shape=shape),
        precision="stored",
        candidate=ONE_CHIP,
        demand=found,
        slo=SLO,
        terms=replace(CHECK, judged=judged),
        replicas=1,
        lead_s=0.2,
        most_requests_per_s=1e9,
    )


@pytest.mark.slow
def test_a_check_finds_what_a_simulation_of_the_same_sessions_does() -> None:
    asked = task()
    check = check_size(asked)
    (share,) = asked.demand.shares(1, judged=150, lead_s=0.2, seed=CHECK.seed)
    run = simulate(deployment_of(asked, share.traffic), share.traffic, judged=share.judged)

    assert run.served.hits is not None
    hits, tokens = run.served.hits[share.judged], share.traffic.prompt_tokens[share.judged]
    assert check.hit_share == hits.sum() / tokens.sum()
    assert check.hit_share > 0.6
    assert check.terms[0].reached_s == run.ttft_percentile_s(95)
    assert check_size(task(caches=False)).hit_share is None


@pytest.mark.slow
def test_intervals_and_windows_of_sessions_go_by_when_turns_really_came() -> None:
    asked = task(judged=600, rate_per_s=14.0, think_s=2.0)
    (share,) = asked.demand.shares(1, judged=600, lead_s=0.2, seed=CHECK.seed)
    run = simulate(deployment_of(asked, share.traffic), share.traffic, judged=share.judged)
    came_s = run.served.arrival_s[run.judged]
    order = np.argsort(came_s, kind="stable")
    limit_ms = round(1e3 * float(np.percentile(run.ttft_s, 90)), 3)
    slo = Slo.parse(f"ttft={limit_ms}ms@p95")
    terms = replace(asked.terms, early_end=False, window=150)
    check = check_size(replace(asked, slo=slo, terms=terms))
    (term,) = check.terms
    kept = (run.ttft_s <= limit_ms / 1e3).astype(np.float64)

    assert (np.diff(order) < 0).any(), "a session's turns stand side by side"
    asked_for = share_estimate(Samples.in_order(kept[order]))
    assert (term.share, term.share_low, term.share_high) == (
        kept.mean(),
        asked_for.low,
        asked_for.high,
    )
    assert asked_for.low != share_estimate(Samples.in_order(kept)).low
    margins = [
        np.log(limit_ms / 1e3 / percentile(part, 95)) for part in np.split(run.ttft_s[order], 4)
    ]
    assert term.again is not None
    assert term.again.spread == pytest.approx(np.std(margins, ddof=1))
    # The order changes no rate and no time.
    assert term.reached_s == run.ttft_percentile_s(95)
    assert check.replica_chip_watts == pytest.approx(run.chip_watts, rel=0.05)
    assert (check.begin_s, check.end_s) == (came_s.min(), came_s.max())


@pytest.mark.slow
def test_after_a_loss_sessions_are_judged_by_the_requests_that_come_from_then_on() -> None:
    asked = replace(task(judged=100, think_s=2.0), candidate=FOUR_CHIPS, lost=(1,))
    asked = replace(asked, terms=replace(asked.terms, early_end=False))
    at_s = asked.demand.shares(1, judged=100, lead_s=0.2, seed=CHECK.seed)[0].begin_s
    check = check_size(asked)
    (share,) = asked.demand.shares(1, judged=400, lead_s=0.2, seed=CHECK.seed)
    loss = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0))
    run = simulate(
        deployment_of(asked, share.traffic),
        share.traffic,
        calls=[TimedCall(at_s=at_s, call=loss, replica=0)],
    )
    came_s = run.served.arrival_s
    after = np.argsort(came_s)[np.searchsorted(np.sort(came_s), at_s) :][:100]

    assert check.requests == 100
    assert (check.begin_s, check.end_s) == (came_s[after].min(), came_s[after].max())
    assert check.begin_s >= at_s
    assert check.terms[0].reached_s == percentile(run.ttft_s[after], 95)


@pytest.mark.slow
def test_a_setting_is_judged_after_the_ramp_of_its_sessions() -> None:
    asked = question(demand=demand(think_s=4.0), slo=SLO, sweep=task().sweep)
    found = plan(replace(asked, pools=False, margins=False))
    judged = size_task(asked, found.choice.setting, judged=150)

    assert found.choice.check.surely_meets
    assert found.choice.check.hit_share is not None
    assert judged.before_s >= asked.demand.ramp_s == pytest.approx(3 * 4.5)
    assert found.choice.check.warmup_s >= 3 * 4.0, "when a fourth turn may come at all"


def test_a_target_that_does_not_say_when_a_reply_ends_is_refused_where_a_turn_waits_for_it() -> (
    None
):
    latest = LatestReply.within(Slo.parse("ttft=300ms"))
    with pytest.raises(ConfigError, match="slo=no TPOT: expected limits of TTFT and TPOT"):
        replace(demand(), latest=latest)

    alone = replace(demand(), workload=workload_spec({**AGENT, "turns": "1"}), latest=latest)
    assert alone.ramp_s == 0
    assert alone.shares(1, judged=30, lead_s=1.0, seed=1)[0].judged.sum() == 30


def test_of_several_limits_the_loosest_says_when_a_reply_is_the_latest() -> None:
    target = Slo.parse("ttft=300ms@p50,ttft=2s@p99,tpot=20ms@p90,tpot=50ms@p99")

    assert LatestReply.within(target) == LatestReply(first_token_s=2.0, token_s=0.05)


@pytest.mark.slow
def test_sessions_that_do_not_fit_the_context_are_left_out_of_the_rate() -> None:
    # First turns of 800 to 3,600 tokens: one in four is within 1,500.
    found = replace(demand(input="uniform:200-3000", turns="2"), context_tokens=1_511)

    assert found.left_out == pytest.approx(0.75, abs=0.02)
    for judged in (1, 40, 900):
        (share,) = found.shares(2, judged=judged, lead_s=1.0, seed=3)
        assert share.judged.sum() == judged
    # What is drawn comes at the rate that is said; 900 sessions or less vary by 3 %.
    per_s = len(share.traffic) / share.traffic.arrival_s[-1]
    assert per_s == pytest.approx(found.peak_rate_per_s / 2, rel=0.12)
    assert "without 75" in found.in_words()
    assert "without" not in demand().in_words()


@pytest.mark.slow
def test_of_hardly_any_that_fit_as_many_as_asked_for_are_judged() -> None:
    found = replace(demand(input="uniform:200-3000", turns="1"), context_tokens=900)
    (share,) = found.shares(1, judged=300, lead_s=0.0, seed=3)

    assert found.left_out == pytest.approx(1 - 90 / 2_801, abs=0.01)
    assert share.judged.sum() == 300


@pytest.mark.slow
def test_sessions_of_which_no_turn_fits_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 of 20,000 first turns: expected 1 % of them within"):
        replace(demand(), context_tokens=100)
