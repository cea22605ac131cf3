"""A researcher's own rank choice, prefill policy and placement."""

from dataclasses import replace

import numba
import numpy as np
import pytest

from emulator.arrays import Bools, Int64s
from emulator.errors import ConfigError
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.policy.prefill_throttle import Balanced, Capped, NoThrottle, PrefillDemand
from serving.policy.rank_choice import choose_rank
from serving.simulator import OwnChoices, Run, SchedulerLimits, SimulatedDeployment, simulate

PARTITION = Partition(chips=4, tp=1, ep=4, lnc=2)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=40))
TRAFFIC = Traffic.drawn(rate_per_s=90.0, lengths=LENGTHS, seed=3, requests=200)


def run(choices: OwnChoices | None = None, *, policy: str = "none") -> Run:
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        PARTITION,
        schedulers=SchedulerLimits(max_num_seqs=8, prefill_policy=policy),
    )
    return simulate(
        deployment if choices is None else replace(deployment, choices=choices), TRAFFIC
    )


def assert_same(one: Run, other: Run) -> None:
    assert one.served.first_token_s.tolist() == other.served.first_token_s.tolist()
    assert one.served.last_token_s.tolist() == other.served.last_token_s.tolist()
    assert one.served.joules == pytest.approx(other.served.joules)


def test_the_engine_s_own_choice_as_a_function_gives_the_engine_s_run() -> None:
    assert_same(run(OwnChoices(rank=choose_rank)), run())


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("none", NoThrottle()),
        ("capped:64", Capped(tokens=64)),
        ("balanced:8:32:256", Balanced(steps=8, floor_tokens=32, ceiling_tokens=256)),
    ],
)
def test_a_policy_s_own_function_gives_the_policy_s_run(
    name: str, policy: NoThrottle | Capped | Balanced
) -> None:
    assert_same(run(OwnChoices(prefill=policy.budgets)), run(policy=name))


@pytest.mark.long
def test_a_function_may_be_compiled() -> None:
    @numba.njit
    def fewest(load_tokens: Int64s) -> int:
        return int(load_tokens.argmin())

    seen: list[int] = []

    def choose(
        *, hit_tokens: Int64s, load_tokens: Int64s, has_seat: Bools, is_up: Bools
    ) -> int | None:
        del hit_tokens, has_seat, is_up
        seen.append(fewest(load_tokens))
        return seen[-1]

    assert run(OwnChoices(rank=choose)).served.finished.all()
    assert len(seen) == len(TRAFFIC)
    assert set(seen) == {0, 1, 2, 3}


def test_all_on_one_rank_is_slower() -> None:
    def first(
        *, hit_tokens: Int64s, load_tokens: Int64s, has_seat: Bools, is_up: Bools
    ) -> int | None:
        del hit_tokens, load_tokens, has_seat, is_up
        return 0

    crowded = run(OwnChoices(rank=first))
    assert crowded.ttft_percentile_s(99) > run().ttft_percentile_s(99)  # type: ignore[operator]


@pytest.mark.parametrize("rank", [None, -1, 4])
def test_a_rank_that_is_not_there_is_refused(rank: int | None) -> None:
    def nowhere(
        *, hit_tokens: Int64s, load_tokens: Int64s, has_seat: Bools, is_up: Bools
    ) -> int | None:
        del hit_tokens, load_tokens, has_seat, is_up
        return rank

    with pytest.raises(ConfigError, match=f"rank={rank}: expected one that is open: 0, 1, 2, 3"):
        run(OwnChoices(rank=nowhere))


def test_one_prefilling_rank_at_a_time_is_another_run() -> None:
    def alone(demand: PrefillDemand) -> Int64s:
        """One rank prefills at a time, the one with the longest backlog."""
        budgets = np.zeros(demand.ranks, dtype=np.int64)
        budgets[int(demand.pending_tokens.argmax())] = 512
        return budgets

    served = run(OwnChoices(prefill=alone)).served
    assert served.finished.all()
    assert served.last_token_s.tolist() != run().served.last_token_s.tolist()


def test_a_placement_of_one_s_own_is_paid_for() -> None:
    """All experts on two of four chips: those do all of the work."""
    even = run()
    model = SimulatedDeployment.of("trn3-nl72x2", "qwen3-30b-a3b", PARTITION).cost_model.model
    half = np.full((model.moe_layers, 4, model.experts // 2), -1)
    half[:, :2] = np.arange(model.experts).reshape(2, -1)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        PARTITION,
        schedulers=SchedulerLimits(max_num_seqs=8, prefill_policy="none"),
        placement=ExpertPlacement(experts=model.experts, ep=4, expert_of_slot=half),
    )
    assert simulate(deployment, TRAFFIC).served.busy_s > even.served.busy_s


@pytest.mark.parametrize(
    "budgets",
    [np.zeros(3, dtype=np.int64), np.zeros(4), np.full(4, -2), np.zeros(4, dtype=np.int64)],
)
def test_budgets_that_no_scheduler_can_use_are_refused(budgets: Int64s) -> None:
    with pytest.raises(ConfigError, match="prefill"):
        run(OwnChoices(prefill=lambda demand: budgets))  # noqa: ARG005
