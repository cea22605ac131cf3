"""What a trace's prompts share, in its demand, in the steady state and in a plan's checks."""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_demand import TraceDemand, multiplied
from serving.analysis.plan.plan_margins import highest_rates
from serving.analysis.plan.plan_options import OptionTerms
from serving.analysis.plan.plan_prefixes import COMMON_LEAST, Prefixes, conversations
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_setting import Setting
from serving.simulator import THIS_PROCESS, SimulatedDeployment, simulate
from tests.serving.analysis.plan.planned import CHECK, SWEEP, question

Names = list[list[int]]

BLOCK = 100
(ONE_CHIP,) = [candidate for _, candidate in SWEEP.tasks() if candidate.partition.chips == 1]
SHAPE = replace(SWEEP.shape, prompt_tokens=1_024, output_tokens=8)


def traffic(names: Names, *, apart_s: float = 1.0, block: int = BLOCK, output: int = 5) -> Traffic:
    """A request every `apart_s`, its prompt the named blocks."""
    prompt_tokens = np.array([block * len(each) for each in names], dtype=np.int64)
    return Traffic(
        arrival_s=np.arange(len(names)) * apart_s,
        prompt_tokens=prompt_tokens,
        output_tokens=np.full(len(names), output, dtype=np.int64),
        blocks=PromptBlocks.of(names, tokens=block, prompt_tokens=prompt_tokens),
    )


def names_of(whole: Traffic) -> Names:
    assert whole.blocks is not None
    begin = whole.blocks.begin.tolist()
    return [whole.blocks.names[first:end].tolist() for first, end in pairwise(begin)]


def prefixes(whole: Traffic, begin_s: float, end_s: float) -> Prefixes:
    found = Prefixes.of(whole, begin_s, end_s)
    assert found is not None
    return found


TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=2, max_size=30)


def named(paths: Names) -> Names:
    """A name for each beginning of a path: equal names begin equal texts."""
    known: dict[tuple[int, ...], int] = {}
    return [
        [known.setdefault(tuple(path[:end]), len(known)) for end in range(1, len(path) + 1)]
        for path in paths
    ]


def test_a_cache_without_bounds_finds_what_came_before_and_says_how_long_ago() -> None:
    # From 4 s on: one finds 200 of 300 tokens, from 0 s; one 100 of 200, from 3 s; one nothing; and
    # one all but the last token that it computes in any case, of the request before it.
    whole = traffic([[1, 2, 3], [9], [8], [4, 5], [1, 2, 6], [4, 7], [0, 10], [0, 10]])
    found = prefixes(whole, 4.0, 8.0)

    assert found.cached_within(math.inf).tolist() == [200, 100, 0, 199]
    assert found.share == (200 + 100 + 199) / 900
    # Of pieces of 500 tokens 300 come from within the last second; for 90 % it takes all 4.
    assert (found.lead_s, found.lead_share) == (4.0, 1.0)
    # They came 4, 2 and 1 s before.
    assert found.cached_within(1.2).tolist() == [0, 0, 0, 199]
    assert found.cached_within(2.0).tolist() == [0, 100, 0, 199]
    assert found.cached_within(4.0).tolist() == [200, 100, 0, 199]
    assert found.common_tokens == 0


def test_caches_fill_for_no_longer_than_two_windows() -> None:
    found = prefixes(traffic([[1, 2, 3], [4], [5], [6], [1, 2, 7]]), 4.0, 5.0)

    assert (found.lead_s, found.lead_share) == (2.0, 0.0)


def test_nothing_shared_takes_no_lead() -> None:
    found = prefixes(traffic([[1], [2], [3]]), 1.0, 3.0)

    assert (found.share, found.lead_s, found.lead_share) == (0.0, 0.0, 1.0)
    assert Prefixes.of(replace(traffic([[1], [2]]), blocks=None), 0.0, 2.0) is None


def test_conversations_begin_where_few_enough_share() -> None:
    whole = traffic([[0, 1, 2], [0, 3], [0, 1, 4], [0], [0, 3]])

    assert len(set(conversations(whole, 5).tolist())) == 1
    a, b, c, d, e = conversations(whole, 2).tolist()
    assert (a, b) == (c, e)
    assert len({a, b, d}) == 3
    assert len(set(conversations(whole, 1).tolist())) == 5


@given(paths=TREES, most=st.integers(1, 30))
def test_requests_are_of_one_conversation_where_a_beginning_of_few_is_theirs(
    paths: Names, most: int
) -> None:
    names = named(paths)
    number = conversations(traffic(names), most).tolist()
    having = defaultdict(set)
    for request, own in enumerate(names):
        for name in own:
            having[name].add(request)

    assert sorted(set(number)) == list(range(max(number) + 1))
    for first, own in enumerate(names):
        for second, other in enumerate(names[:first]):
            share = any(len(having[name]) <= most for name in set(own) & set(other))
            assert (number[first] == number[second]) == share


@given(paths=TREES, copies=st.integers(2, 4), seed=st.integers(0, 9))
def test_a_copied_conversation_is_another_one_in_the_same_order(
    paths: Names, copies: int, seed: int
) -> None:
    whole = traffic(named(paths))
    many = multiplied(whole, float(copies), seed=seed)
    end_s = many.arrival_s[-1] + 1
    once, often = prefixes(whole, 0.0, end_s), prefixes(many, 0.0, end_s)

    assert often.cached_tokens[-1].sum() == copies * once.cached_tokens[-1].sum()
    assert len(np.unique(np.concatenate(names_of(many)))) == copies * len(
        np.unique(np.concatenate(names_of(whole)))
    )


def test_copies_share_a_beginning_that_many_requests_have() -> None:
    system = [[0, 1 + number // 2] for number in range(2 * COMMON_LEAST)]  # turns of two requests
    whole = traffic(system)
    many = multiplied(whole, 2.0, seed=3)
    half = multiplied(whole, 0.5, seed=3)

    assert sum(own[0] == names_of(many)[0][0] for own in names_of(many)) == len(many)
    assert len({own[1] for own in names_of(many)}) == 2 * COMMON_LEAST
    kept = [own[1] for own in names_of(half)]
    assert all(kept.count(each) == 2 for each in kept), "a conversation is left out as a whole"
    found = prefixes(many, 0.0, 1e4)
    assert found.common_tokens == BLOCK * (len(many) - 1) / len(many)


def demand_of(names: Names, *, shared: bool = True, rate_per_s: float = 20.0) -> TraceDemand:
    """Prompts of two blocks of 512 tokens."""
    whole = traffic(names, apart_s=1 / rate_per_s, block=512, output=8)
    if not shared:
        whole = replace(whole, blocks=None)
    return TraceDemand(traffic=whole, window_s=len(names) / rate_per_s / 2, source="by hand")


def turns(requests: int, *, shared: bool = True) -> TraceDemand:
    """Four requests at a time share the first half of their prompts."""
    names = [[number // 32 * 8 + number % 8, -1 - number] for number in range(requests)]
    return demand_of(names, shared=shared)


def one_system_prompt(requests: int, *, shared: bool) -> TraceDemand:
    """All requests share the first half of their prompts."""
    return demand_of([[0, 1 + number] for number in range(requests)], shared=shared)


def task(demand: TraceDemand, *, replicas: int = 2, judged: int = 150) -> SizeTask:
    return SizeTask(
        sweep=replace(SWEEP, shape=demand.prefixes.shape(SHAPE) if demand.prefixes else SHAPE),
        precision="stored",
        candidate=ONE_CHIP,
        demand=demand,
        slo=Slo.parse("ttft=300ms,tpot=20ms@p95"),
        terms=replace(CHECK, judged=judged),
        replicas=replicas,
        lead_s=0.2,
        most_requests_per_s=1e9,
    )


def test_a_conversation_stays_on_its_replica_with_what_came_before() -> None:
    demand = turns(800)
    shares = demand.shares(4, judged=400, lead_s=0.0, seed=2)
    seen = [{own[0] for own in names_of(share.traffic)} for share in shares]

    assert len(shares) == 4
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert demand.prefixes is not None
    assert demand.prefixes.share == pytest.approx(3 / 8, abs=0.01)


def test_a_mean_prompt_is_costed_by_what_is_to_compute() -> None:
    demand = turns(800)
    shared, whole = (task(each).sweep for each in (demand, turns(800, shared=False)))
    terms = OptionTerms.of(shared, demand, Slo.parse("ttft=300ms,tpot=20ms"), seats=64)
    option, plain = (
        replace(terms, sweep=sweep).option(("stored", ONE_CHIP)) for sweep in (shared, whole)
    )

    assert shared.shape.cached_tokens == pytest.approx(384, abs=2)
    assert option is not None
    assert plain is not None
    assert 1.2 < option.most_requests_per_s / plain.most_requests_per_s < 1.6
    # The longest to compute is a first turn, of which nothing is cached.
    assert (terms.long_prompt, terms.long_cached_tokens) == (1_024, 0)


def test_a_check_finds_what_a_simulation_of_the_same_share_does() -> None:
    asked = task(turns(600), replicas=1)
    check = check_size(asked)
    (share,) = asked.demand.shares(1, judged=150, lead_s=0.2, seed=CHECK.seed)
    deployment = SimulatedDeployment(
        cost_model=asked.sweep.cost_model("stored", ONE_CHIP),
        limits=CHECK.schedulers.with_kv(ONE_CHIP.kv_capacity_tokens),
    )
    served = simulate(deployment, share.traffic).served

    assert served.hits is not None
    hits, tokens = served.hits[share.judged], share.traffic.prompt_tokens[share.judged]
    assert check.hit_share == hits.sum() / tokens.sum()
    assert check.hit_share > 0.3
    assert check_size(task(turns(600, shared=False))).hit_share is None


@pytest.mark.long
def test_the_same_chips_take_a_higher_rate_where_prompts_share_half_of_their_tokens() -> None:
    tasks = [task(one_system_prompt(600, shared=shared), replicas=1) for shared in (True, False)]
    with_prefixes, without = highest_rates(tasks, THIS_PROCESS)

    assert without.requests_per_s > 0
    assert with_prefixes.requests_per_s > 1.4 * without.requests_per_s


def test_the_steady_state_counts_what_an_engine_keeps_at_full_load() -> None:
    demand = turns(800)
    sweep = task(demand).sweep
    terms = OptionTerms.of(sweep, demand, Slo.parse("ttft=300ms,tpot=20ms"), seats=64)
    step, prompts = sweep.replica("stored", ONE_CHIP).prefill()
    tokens_per_s = prompts * sweep.shape.computed_tokens / step.duration_ns * NS_PER_S
    assert demand.prefixes is not None
    spread = replace(demand.prefixes, cached_tokens=demand.prefixes.cached_tokens.copy())
    spread.cached_tokens[:3] = 0  # as if turns came more than 4 s after each other

    def cached(kept_s: float) -> int:
        candidate = replace(ONE_CHIP, kv_capacity_tokens=int(kept_s * tokens_per_s))
        found = replace(terms, prefixes=spread).as_kept(sweep.replica("stored", candidate))
        return found[1].shape.cached_tokens

    assert cached(3.0) == cached(5.0) == 0
    assert cached(6.0) == cached(100.0) == sweep.shape.cached_tokens > 380


def test_caches_warm_until_new_tokens_have_filled_them() -> None:
    demand = turns(800)
    assert demand.prefixes is not None
    object.__setattr__(demand, "prefixes", replace(demand.prefixes, lead_s=8.0))
    asked = question(demand=demand, sweep=task(demand).sweep)
    terms = OptionTerms.of(asked.sweep, demand, asked.slo, seats=64)

    def warm_s(kv_tokens: int) -> float:
        option = terms.option(("stored", replace(ONE_CHIP, kv_capacity_tokens=kv_tokens)))
        assert option is not None
        setting = Setting(option=option, policy="none", replicas=1)
        return Race(asked, THIS_PROCESS, lambda _: None).task(setting, judged=10_000).before_s

    # Of 20 requests/s each brings 1,024 - 383 new tokens.
    assert warm_s(64_100) == pytest.approx(5.0, rel=0.01)
    assert warm_s(10**9) == 8.0
