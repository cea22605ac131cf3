"""A size held against a target, by simulation."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Bound, Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import lognormal_of_median
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.class_demand import ClassesDemand, PlannedClass
from serving.analysis.plan.plan_check import SizeTask, check_by_seed, check_in_turn, check_size
from serving.analysis.plan.plan_demand import TraceDemand
from serving.analysis.plan.replica_share import Share
from serving.analysis.plan.size_check import Check
from serving.simulator import THIS_PROCESS, SimulatedDeployment, simulate
from serving.traffic.engine_limits import EngineLimits
from serving.traffic.serving_run import Ending
from tests.serving.analysis.plan.planned import CHECK, DEMAND, QUESTION, SWEEP
from tests.serving.traffic.kept_levels import attainment, tpot_percentile_s

(ONE_CHIP,) = [candidate for _, candidate in SWEEP.tasks() if candidate.partition.chips == 1]
CHECK_FEW = replace(CHECK, judged=40)


def task(**changes: object) -> SizeTask:
    plain = SizeTask(
        sweep=SWEEP,
        precision="stored",
        candidate=ONE_CHIP,
        demand=DEMAND,
        slo=QUESTION.slo,
        terms=CHECK_FEW,
        replicas=20,
        lead_s=0.2,
        most_requests_per_s=1e9,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def twenty() -> Check:
    return check_size(task())


@pytest.mark.long
def test_a_check_is_the_simulation_of_one_share(twenty: Check) -> None:
    (share,) = DEMAND.shares(20, judged=40, lead_s=0.2, seed=CHECK_FEW.seed)
    costs = StepCostModel(
        SWEEP.system,
        SWEEP.model,
        replace(ONE_CHIP.partition, first_chip=ONE_CHIP.first_chip),
        calibration=ROOFLINE,
    )
    limits = EngineLimits(
        max_num_batched_tokens=CHECK.schedulers.max_num_batched_tokens,
        max_num_seqs=CHECK.schedulers.max_num_seqs,
        kv_blocks_per_rank=ONE_CHIP.kv_capacity_tokens // 32,
        block_tokens=32,
    )
    run = simulate(SimulatedDeployment(cost_model=costs, limits=limits), share.traffic).served

    assert twenty.ending is Ending.JUDGED
    assert twenty.requests == 40
    assert twenty.simulated_requests == len(share.traffic)
    assert [term.reached_s for term in twenty.terms] == [
        percentile(run.ttft_s[share.judged], 95.0),
        tpot_percentile_s(run, 95.0, share.judged),
    ]
    for term, bound in zip(twenty.terms, QUESTION.slo.bounds, strict=True):
        assert term.share == attainment(run, bound, share.judged)
        if term.share == 1:  # Wilson's interval of 40 of 40 independent requests
            assert term.share_low == pytest.approx(40 / (40 + 1.959964**2))
            assert term.share_high == 1
            assert not term.is_sure  # of 95 %
    assert twenty.terms[0].share == 1
    last = run.last_token_s[share.judged].max()
    assert twenty.steps == int((run.step_end_s <= last).sum()) < run.steps


@pytest.mark.long
def test_the_watts_lie_between_idle_and_what_the_whole_run_draws_at_work(twenty: Check) -> None:
    idle_watts = SWEEP.system.chip.idle_watts.value

    assert idle_watts < twenty.replica_chip_watts < SWEEP.system.chip.budget_watts.value
    assert 0 < twenty.busy_share <= 1
    rare = check_size(task(replicas=2_000, terms=replace(CHECK_FEW, judged=5)))
    assert rare.busy_share < twenty.busy_share
    assert idle_watts < rare.replica_chip_watts < twenty.replica_chip_watts


def test_what_power_holds_back_is_told() -> None:
    chip = SWEEP.system.chip
    starved = replace(
        chip, budget_watts=replace(chip.budget_watts, value=chip.idle_watts.value + 40)
    )
    few = replace(CHECK_FEW, judged=5)
    held_back = check_size(
        task(sweep=replace(SWEEP, system=replace(SWEEP.system, chip=starved)), terms=few)
    )

    assert held_back.throttled_share > 0.1
    assert check_size(task(terms=few)).throttled_share < held_back.throttled_share


@pytest.mark.long
def test_a_target_just_above_what_was_reached_is_met_and_one_below_is_not(twenty: Check) -> None:
    reached = twenty.terms[1].reached_s
    assert reached is not None

    def meets(tpot_s: float) -> bool:
        return check_size(
            task(slo=Slo(bounds=(Bound(measure="tpot_ms", limit=tpot_s * 1e3, percentile=95),)))
        ).meets

    assert meets(reached * (1 + 1e-12))
    assert not meets(reached * (1 - 1e-12))


@pytest.mark.long
def test_a_run_that_ends_early_leaves_percentiles_open_and_the_share_a_bound() -> None:
    crowded = task(replicas=1, slo=Slo.parse("ttft=20ms@p90"))
    early = check_size(crowded)
    late = check_size(replace(crowded, terms=replace(CHECK_FEW, early_end=False)))

    assert early.ending is Ending.HOPELESS
    assert early.terms[0].reached_s is None
    assert late.terms[0].reached_s is not None
    assert late.terms[0].share <= early.terms[0].share < 0.9
    assert not early.meets
    assert not late.meets


@pytest.mark.long
def test_a_size_that_gets_more_than_it_can_take_fails_however_short_the_run(twenty: Check) -> None:
    overloaded = check_size(task(most_requests_per_s=12.0))  # a twentieth of 250/s is 12.5

    assert twenty.meets
    assert overloaded.load_share == pytest.approx(12.5 / 12)
    assert overloaded.terms == twenty.terms
    assert not overloaded.meets


@pytest.mark.long
def test_few_requests_of_a_replica_are_made_up_for_by_more_replicas() -> None:
    tokens = np.full(60, 50, dtype=np.int64)
    whole = Traffic(
        arrival_s=np.arange(60) / 10.0, prompt_tokens=tokens, output_tokens=tokens // 10
    )
    demand = TraceDemand(traffic=whole, window_s=6.0, source="even")
    check = check_size(task(demand=demand, replicas=6, terms=replace(CHECK_FEW, judged=30)))

    assert check.simulated_replicas == 3
    assert check.requests == pytest.approx(30, abs=12)
    assert check.ending in (Ending.JUDGED, Ending.SERVED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenShares:
    """A demand whose shares are laid down."""

    given: tuple[Share, ...]
    peak_rate_per_s: float = 1.0
    prefixes: None = None

    @property
    def peak(self) -> Traffic:
        return self.given[0].traffic

    def in_words(self) -> str:
        return "by hand"

    def shares(
        self, replicas: int, *, judged: int, lead_s: float, seed: int, before_s: float = 0.0
    ) -> tuple[Share, ...]:
        del replicas, judged, lead_s, seed, before_s
        return self.given


def share_of(arrivals: list[float], *, judged_from_s: float) -> Share:
    arrival_s = np.array(arrivals)
    return Share(
        traffic=Traffic(
            arrival_s=arrival_s,
            prompt_tokens=np.full(len(arrivals), 400),
            output_tokens=np.full(len(arrivals), 5),
        ),
        judged=arrival_s >= judged_from_s,
        begin_s=judged_from_s,
        end_s=arrivals[-1] + 0.1,
        warmup_s=judged_from_s,
    )


def test_requests_of_the_warm_up_are_not_judged() -> None:
    crowd, calm = [0.0] * 40, [10.0 + each for each in range(8)]
    share = share_of([*crowd, *calm], judged_from_s=5.0)
    check = check_size(
        task(demand=GivenShares(given=(share,)), slo=Slo.parse("ttft=200ms@p90"), lead_s=1.0)
    )

    assert check.requests == 8
    assert check.ending is Ending.SERVED
    assert check.meets


@pytest.mark.long
def test_one_replica_that_misses_does_not_end_what_all_together_keep() -> None:
    crowded = share_of([*[0.0] * 30, *[5.0] * 3], judged_from_s=0.0)
    calm = share_of([0.2 * each for each in range(350)], judged_from_s=0.0)
    slo = Slo.parse("ttft=120ms@p90")
    alone = check_size(task(demand=GivenShares(given=(crowded,)), slo=slo))
    both = check_size(task(demand=GivenShares(given=(crowded, calm)), slo=slo))

    assert not alone.meets
    assert both.meets
    assert both.terms[0].share < 1
    assert both.terms[0].reached_s is not None
    assert both.simulated_replicas == 2


def test_what_is_not_finished_when_the_time_is_up_has_missed_everything() -> None:
    check = check_size(
        task(
            replicas=1,
            slo=Slo.parse("ttft=10ms,tpot=20ms@p90"),
            lead_s=0.05,
            terms=replace(CHECK, judged=200, early_end=False),
        )
    )
    ttft, tpot = check.terms

    assert check.ending is Ending.TIME_UP
    assert tpot.share < 0.7
    assert tpot.share_low is not None
    assert tpot.share_high is not None
    assert tpot.share_low < tpot.share < tpot.share_high < 0.9
    assert tpot.is_sure
    assert tpot.reached_s is None
    assert ttft.reached_s is None
    assert not check.meets


def test_a_request_that_no_rank_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_blocks_per_rank"):
        check_size(task(candidate=replace(ONE_CHIP, kv_capacity_tokens=200)))


def test_a_trace_on_one_replica_has_one_run_and_a_rate_as_many_as_asked() -> None:
    recorded = TraceDemand(
        traffic=DEMAND.peak.first(200), window_s=1.0, source="the first requests of a rate"
    )

    assert DEMAND.runs(1, 4) == 4
    assert recorded.runs(1, 4) == 1
    one, other = (recorded.shares(1, judged=40, lead_s=0.1, seed=seed)[0] for seed in (1, 2))
    assert (one.traffic.arrival_s == other.traffic.arrival_s).all()
    assert recorded.runs(3, 4) == 4
    first, second = (recorded.shares(3, judged=40, lead_s=0.1, seed=seed)[0] for seed in (1, 2))
    assert (
        len(first.traffic) != len(second.traffic)
        or (first.traffic.arrival_s != second.traffic.arrival_s).any()
    )


def test_one_more_window_is_bounded_by_the_spread_of_those_there_are() -> None:
    terms = replace(CHECK_FEW, judged=40, runs=3, window=20)
    whole = check_size(task(terms=terms))
    surer = check_size(task(terms=replace(terms, again_tail=0.005)))
    alone = check_size(task(terms=replace(CHECK_FEW, judged=40)))

    assert alone.terms[0].again is None
    assert whole.requests == 120
    for term, sure in zip(whole.terms, surer.terms, strict=True):
        assert term.again is not None
        assert sure.again is not None
        assert term.reached_s is not None
        assert sure.again.least_s < term.again.least_s < term.again.likely_s
        assert sure.again.likely_s == term.again.likely_s < term.reached_s
        assert term.reached_s <= term.again.most_s < sure.again.most_s
        assert (term.again.requests, term.again.confidence) == (20, 0.975)


def test_replies_of_one_token_leave_as_many_windows_of_as_many_requests() -> None:
    lengths = IndependentLengths(
        prompt=lognormal_of_median(median=380, sigma=0.3),
        output=lognormal_of_median(median=3, sigma=0.8),
    )
    terms = replace(CHECK_FEW, judged=40, runs=2, window=20)
    ttft, tpot = check_size(task(demand=replace(DEMAND, lengths=lengths), terms=terms)).terms

    assert ttft.again is not None
    assert tpot.again is not None
    assert ttft.again.windows == tpot.again.windows == 4
    assert ttft.again.requests == tpot.again.requests == 20
    assert "one more run of 20 requests: about" in tpot.again_words


def test_a_class_is_told_by_whole_runs_and_what_it_has_of_them() -> None:
    common, rare = (
        PlannedClass(
            name=name,
            rate_per_s=rate_per_s,
            lengths=DEMAND.lengths,
            words="short",
            slo=Slo.parse("ttft=300ms@p90"),
        )
        for name, rate_per_s in (("common", 200.0), ("rare", 50.0))
    )
    classes = ClassesDemand.of([common, rare], context_tokens=DEMAND.context_tokens, seed=1)
    terms = replace(CHECK_FEW, judged=80, runs=2, window=40)
    found = check_size(task(demand=classes, slo=classes.slo, terms=terms)).terms

    for term in found:
        assert term.again is not None
        assert term.again.windows == 4
        assert term.again.of_class == round(term.requests / 4)
        words = f"one more run of 40 requests (of which about {term.again.of_class}): about"
        assert words in term.again_words
    assert sum(term.requests for term in found) == 160


def test_a_run_that_missed_is_not_made_good_by_the_others() -> None:
    terms = replace(CHECK_FEW, judged=40, runs=5, window=40, again_tail=0.4)
    one_by_one = [
        check_size(task(terms=replace(terms, runs=1, seed=terms.seed + number)))
        for number in range(terms.runs)
    ]
    reached = [each.terms[0].reached_s or 0.0 for each in one_by_one]
    (bound, *_) = task().slo.bounds
    between_s = (sorted(reached)[-1] + sorted(reached)[-2]) / 2  # the worst run alone misses
    slo = Slo.parse(f"ttft={1e3 * between_s}ms@p{bound.percentile:g}")

    (term,) = check_size(task(slo=slo, terms=terms)).terms

    assert term.again is not None
    assert term.again.most_s >= max(reached) * (1 - 1e-9)
    assert not term.is_surely_kept


@pytest.mark.parametrize("ttft", ["40ms", "150ms"])
def test_runs_in_turn_come_to_what_all_of_them_do(ttft: str) -> None:
    slo = Slo.parse(f"ttft={ttft}@p90")
    several = task(slo=slo, terms=replace(CHECK_FEW, judged=40, runs=5, window=20))
    seeds = several.terms.seeds
    whole = check_size(several)

    ((found, worst),) = check_in_turn([(several, seeds)], THIS_PROCESS)

    assert found.surely_meets == whole.surely_meets
    assert (worst is None) == whole.surely_meets
    if worst is None:
        assert found == whole
    else:
        assert found.requests < whole.requests
        ((alone, may_be_sure),) = check_by_seed([several], worst, THIS_PROCESS)
        assert not may_be_sure
        assert alone.requests == 40


@pytest.mark.long
def test_several_sizes_in_turn_come_to_what_each_does_alone() -> None:
    asked = [
        (each, each.terms.seeds)
        for runs, ttft in ((3, "40ms"), (5, "150ms"), (1, "1s"))
        for each in [
            task(
                slo=Slo.parse(f"ttft={ttft}@p90"),
                terms=replace(CHECK_FEW, judged=40, runs=runs, window=20),
            )
        ]
    ]

    together = check_in_turn(asked, THIS_PROCESS)

    assert together == [check_in_turn([each], THIS_PROCESS)[0] for each in asked]
    assert {worst is None for _, worst in together} == {False, True}
