"""Prefill and decode on separate chips, in virtual time."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.arrays import Bools
from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.policy.routing import ROUTERS
from serving.simulator import (
    ReplicaSet,
    SchedulerLimits,
    SimulatedDeployment,
    TimedCall,
    drawn_losses,
    run_log,
    simulate,
)
from serving.simulator.pools_ahead import PromptsHeldUp
from serving.simulator.run_log import Logs
from serving.simulator.virtual_serving import VirtualServing
from serving.traffic.serving_run import ServingRun
from serving.wire.control_call import InjectRequest

SYSTEM, MODEL = "trn3-nl72x2", "qwen3-30b-a3b"
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=40))
TRAFFIC = Traffic.drawn(rate_per_s=40.0, lengths=LENGTHS, seed=3, requests=120)


def engine(chips: int, **how: object) -> SimulatedDeployment:
    partition = Partition(chips=chips, tp=1, ep=chips, lnc=2)
    return SimulatedDeployment.of(SYSTEM, MODEL, partition, **how)  # type: ignore[arg-type]


PREFILL = engine(2, replicas=ReplicaSet(count=2, router="least-loaded"))
POOLS = replace(engine(4, replicas=ReplicaSet(count=2)), prefill=PREFILL)
WITH_ROLES = replace(engine(4, prefill_ranks=1), prefill=PREFILL)


def one(prompt_tokens: int, output_tokens: int) -> Traffic:
    return alike([1.0], prompt_tokens, output_tokens)


def alike(arrival_s: list[float], prompt_tokens: int, output_tokens: int) -> Traffic:
    return Traffic(
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.full(len(arrival_s), prompt_tokens),
        output_tokens=np.full(len(arrival_s), output_tokens),
    )


@pytest.mark.parametrize("pools", [POOLS, WITH_ROLES])
def test_one_request_s_time_is_its_prompt_s_and_its_decodes(
    pools: SimulatedDeployment,
) -> None:
    """Its KV has come with the steps that compute the prompt."""
    prompt_s = simulate(PREFILL, one(700, 1)).ttft_s[0]
    decode = POOLS.cost_model.cost(
        StepBatch(
            ranks=4,
            rank=np.array([0]),
            new_tokens=np.array([1]),
            context_tokens=np.array([699]),
            logit_rows=np.array([1, 0, 0, 0]),
        )
    )
    run = simulate(pools, one(700, 1))
    assert run.ttft_s[0] == pytest.approx(prompt_s + decode.duration_ns / 1e9)


def test_a_prompt_that_ends_while_its_next_engine_computes_decodes_in_the_next_step() -> None:
    prefill = replace(PREFILL, replicas=ReplicaSet(count=1))
    pools = replace(POOLS, replicas=ReplicaSet(count=1), prefill=prefill)
    two = Traffic(
        arrival_s=np.array([1.0, 1.05]),
        prompt_tokens=np.array([20, 700]),
        output_tokens=np.array([60, 2]),
    )
    steps: list[tuple[int, int, list[int]]] = []

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del queues
        if batch.ranks == 4:
            end_ns = begin_ns + cost.duration_ns
            steps.append((begin_ns, end_ns, batch.context_tokens.tolist()))

    served = simulate(pools, two, on_step=see).served
    computed_ns = round((1.05 + simulate(prefill, one(700, 1)).ttft_s[0]) * 1e9)
    asked_ns = min(end for begin, end, _ in steps if begin < computed_ns <= end)
    first = min(step for step in steps if 699 in step[2])
    assert asked_ns - computed_ns > 100, "a step is under way"
    assert first[0] == asked_ns
    assert served.first_token_s[1] == pytest.approx(first[1] / 1e9)


def test_kv_is_asked_for_with_the_blocks_that_it_will_need() -> None:
    """Two prompts end at once, and a rank has blocks for one: the other's KV waits for its end."""
    decode = engine(1)
    one_fits = replace(decode.limits, kv_blocks_per_rank=40)
    pools = replace(decode, limits=one_fits, prefill=engine(2))
    served = simulate(pools, alike([1.0, 1.0], 700, 5)).served
    batch = StepBatch(
        ranks=1,
        rank=np.array([0]),
        new_tokens=np.array([1]),
        context_tokens=np.array([699]),
        logit_rows=np.array([1]),
    )
    waits_ns = decode.cost_model.cost(batch).duration_ns
    assert served.first_token_s[1] == pytest.approx(served.last_token_s[0] + waits_ns / 1e9)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "blocks"),
    [
        pytest.param(1_020, 4, 32, id="drafts end at the context"),
        pytest.param(220, 1, 8, id="a first step is padded to the drafts' width"),
    ],
)
def test_kv_and_its_drafts_fit_where_a_request_is_accepted(
    prompt_tokens: int, output_tokens: int, blocks: int
) -> None:
    """With vLLM's own block and `blocks` of 32 tokens it is served, with one less refused."""
    drafts = SchedulerLimits(speculative_tokens=3, acceptance=(0.5,), max_model_len=1_024)
    prefill = engine(1, schedulers=SchedulerLimits(max_model_len=1_024))
    decode = replace(engine(1, schedulers=drafts), prefill=prefill)
    only = one(prompt_tokens, output_tokens)
    fits, lacks = (
        replace(decode, limits=replace(decode.limits, kv_blocks_per_rank=each))
        for each in (blocks + 1, blocks)
    )
    assert simulate(fits, only).served.finished.all()
    with pytest.raises(ConfigError, match=f"at least {blocks + 1}"):
        simulate(lacks, only)


@pytest.mark.long
@pytest.mark.parametrize("cached", [False, True])
def test_a_prompt_keeps_its_blocks_until_it_is_read(cached: bool) -> None:
    """One seat decodes, and one rank has blocks for one prompt: the third is computed once the
    second has been read, which the first one's end lets begin.
    """
    decode = engine(1, schedulers=SchedulerLimits(max_num_seqs=1))
    prefill = engine(1)
    prefill = replace(prefill, limits=replace(prefill.limits, kv_blocks_per_rank=24))
    three = alike([1.0] * 3, 700, 60)
    if cached:
        three = replace(three, blocks=apart(three))
    begins_ns: dict[int, list[int]] = {699: [], 0: []}

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del cost, queues
        begins_ns.setdefault(int(batch.context_tokens[0]), []).append(begin_ns)

    served = simulate(replace(decode, prefill=prefill), three, on_step=see).served
    assert served.finished.all()
    first_read_ns, second_read_ns, _ = begins_ns[699]
    _, second_computed_ns, third_computed_ns = begins_ns[0]
    assert (second_computed_ns, third_computed_ns) == (first_read_ns, second_read_ns)
    ahead = simulate(replace(decode, prefill=prefill), three).served
    assert ahead.first_token_s.tolist() == served.first_token_s.tolist()


def apart(traffic: Traffic) -> PromptBlocks:
    """Prompts that share nothing, for a prefix cache."""
    ends = np.arange(len(traffic) + 1)
    return PromptBlocks(
        names=ends[:-1], end_tokens=traffic.prompt_tokens.astype(np.int64), begin=ends
    )


@pytest.mark.long
@pytest.mark.parametrize("pools", [POOLS, WITH_ROLES])
def test_prompts_are_computed_in_one_pool_and_replies_in_the_other(
    pools: SimulatedDeployment,
) -> None:
    rows: dict[int, list[tuple[int, int]]] = {2: [], 4: []}

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del cost, begin_ns, queues
        rows[batch.ranks] += zip(
            batch.new_tokens.tolist(), batch.context_tokens.tolist(), strict=True
        )

    served = simulate(pools, TRAFFIC, on_step=see).served
    assert served.finished.all()
    assert served.tokens == int(TRAFFIC.output_tokens.sum())
    assert sum(new for new, _ in rows[2]) == int(TRAFFIC.prompt_tokens.sum())
    assert {new for new, _ in rows[4]} == {1}
    assert len(rows[4]) == served.tokens


def test_idle_pools_draw_idle_watts() -> None:
    run = simulate(POOLS, one(10, 1), window_s=(0.0, 0.5))
    assert POOLS.chips == 2 * 4 + 2 * 2
    idle_watts = POOLS.cost_model.idle_chip_watts * POOLS.chips
    assert run.chip_watts == pytest.approx(idle_watts)
    assert run.served.joules > idle_watts * run.served.emulated_s


def test_a_preempted_request_computes_its_prompt_again_where_it_decodes() -> None:
    tight = replace(
        engine(2, schedulers=SchedulerLimits(max_num_seqs=8)),
        prefill=PREFILL,
    )
    tight = replace(tight, limits=replace(tight.limits, kv_blocks_per_rank=60))
    served = simulate(tight, TRAFFIC).served
    assert served.preemptions > 0
    assert served.finished.all()
    assert served.tokens == int(TRAFFIC.output_tokens.sum())


@pytest.mark.long
def test_chips_of_either_pool_may_be_lost() -> None:
    fault = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1))
    calls = [TimedCall(at_s=1.0, call=fault, replica=number) for number in (1, 2)]
    served = simulate(POOLS, TRAFFIC, calls=calls).served
    assert (served.finished ^ served.failed).all()
    assert served.last_token_s.tolist() != simulate(POOLS, TRAFFIC).served.last_token_s.tolist()


@pytest.mark.long
def test_kv_that_was_not_asked_for_outlives_a_lost_rank() -> None:
    """Each rank's one seat is taken when the others' prompts end: what runs there is computed
    again, and the KV of those that wait lies where they were computed.
    """
    pools = replace(engine(4, schedulers=SchedulerLimits(max_num_seqs=1)), prefill=PREFILL)
    fault = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1))
    computed: list[int] = []

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del cost, begin_ns, queues
        if batch.ranks == 4:
            computed.extend(batch.new_tokens[batch.new_tokens > 1].tolist())

    traffic = alike([1.0] * 4 + [1.2] * 8, 700, 60)
    calls = [TimedCall(at_s=1.3, call=fault, replica=0)]
    served = simulate(pools, traffic, calls=calls, on_step=see).served
    assert served.finished.all()
    assert served.preemptions == 1
    assert len(computed) == 1
    assert 700 < computed[0] < 760, "its prompt and its tokens"


@pytest.mark.slow
def test_drawn_losses_strike_the_chips_that_prefill_too() -> None:
    calls = drawn_losses(POOLS.partitions, every_s=0.3, repair_s=0.5, seed=2)
    assert {each.replica for each in calls[:100]} == {0, 1, 2, 3}
    served = simulate(POOLS, TRAFFIC, calls=calls).served
    assert (served.finished ^ served.failed).all()


def test_pools_serve_one_model() -> None:
    partition = Partition(chips=4, tp=1, ep=4, lnc=2)
    with pytest.raises(ConfigError, match="prefill"):
        replace(SimulatedDeployment.of(SYSTEM, "gpt-oss-20b", partition), prefill=PREFILL)
    with pytest.raises(ConfigError, match="prefill"):
        replace(POOLS, prefill=POOLS)


@pytest.mark.slow
@given(
    seed=st.integers(0, 1_000),
    rate_per_s=st.sampled_from([5.0, 60.0, 400.0]),
    prefills=st.integers(1, 3),
    decodes=st.integers(1, 3),
    routers=st.tuples(*2 * [st.sampled_from(sorted(ROUTERS))]),
    kv_blocks=st.sampled_from([40, 80, 4_000]),
    prefill_blocks=st.sampled_from([60, 150, 300, 4_000]),
)
@settings(max_examples=12, deadline=None)
def test_pools_that_go_ahead_serve_as_step_by_step(
    seed: int,
    rate_per_s: float,
    prefills: int,
    decodes: int,
    routers: tuple[str, str],
    kv_blocks: int,
    prefill_blocks: int,
) -> None:
    prefill = engine(2, schedulers=SchedulerLimits(prefill_policy="none"))
    decode = engine(4, schedulers=SchedulerLimits(max_num_seqs=8))
    prefill = replace(prefill, limits=replace(prefill.limits, kv_blocks_per_rank=prefill_blocks))
    pools = replace(
        decode,
        limits=replace(decode.limits, kv_blocks_per_rank=kv_blocks),
        replicas=ReplicaSet(count=decodes, router=routers[0]),
        prefill=replace(prefill, replicas=ReplicaSet(count=prefills, router=routers[1])),
    )
    traffic = Traffic.drawn(rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=60)
    steps: list[int] = []

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del cost, batch, queues
        steps.append(begin_ns)

    ahead, one_by_one = simulate(pools, traffic), simulate(pools, traffic, on_step=see)
    in_short = simulate(pools, traffic, logs=False)
    assert in_short.served.steps == ahead.served.steps == len(steps)
    assert in_short.chip_watts == pytest.approx(ahead.chip_watts, rel=1e-9)
    for field in ("first_token_s", "last_token_s", "preemptions", "kv_blocks_used_max"):
        ours, theirs = (getattr(each.served, field) for each in (in_short, one_by_one))
        np.testing.assert_array_equal(ours, theirs, err_msg=field)
    for kept in fields(ServingRun):
        if kept.name not in ("traffic", "totals"):
            ours, theirs = (getattr(each.served, kept.name) for each in (ahead, one_by_one))
            np.testing.assert_array_equal(ours, theirs, err_msg=kept.name)


def is_held_up(pools: SimulatedDeployment, traffic: Traffic, judged: Bools | None = None) -> bool:
    """Whether pools that go ahead of each other see that they should not have."""
    how = dict.fromkeys(("timeout_s", "on_step", "progress", "day_night"))
    among = np.ones(len(traffic), dtype=np.bool_) if judged is None else judged
    run = VirtualServing(pools, traffic, among, calls=(), seed=0, logs=Logs.TOTALS, **how)
    try:
        run.serve((), until_ns=float("inf"))
    except PromptsHeldUp:
        return True
    return False


def with_prefill_blocks(decode: SimulatedDeployment, kv_blocks: int) -> SimulatedDeployment:
    """Prompts are computed on one rank with so many blocks, vLLM's own one included."""
    prefill = engine(1, schedulers=SchedulerLimits(prefill_policy="none"))
    limits = replace(prefill.limits, kv_blocks_per_rank=kv_blocks)
    return replace(decode, prefill=replace(prefill, limits=limits))


@pytest.mark.parametrize(("cached", "enough"), [(False, 88), (True, 108)])
def test_pools_go_ahead_with_blocks_for_what_is_unread(cached: bool, enough: int) -> None:
    """Two prompts of 22 blocks wait for the one seat. They, what is computed and what may come take
    four times as many; with a cache, three prompts take 64 that were never used, as the last ones
    of two are used again, and 44 more if they were kept.
    """
    decode = engine(1, schedulers=SchedulerLimits(max_num_seqs=1))
    three = alike([1.0, 1.2, 1.4], 700, 90)
    if cached:
        three = replace(three, blocks=apart(three))
    assert not is_held_up(with_prefill_blocks(decode, enough + 1), three)
    assert is_held_up(with_prefill_blocks(decode, enough), three)


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
def test_pools_that_are_not_held_up_serve_as_step_by_step(cached: bool) -> None:
    outcomes: list[bool] = []
    for seed, kv_blocks in product(range(3), (60, 100, 180, 240, 1_200)):
        random = np.random.default_rng(seed)
        decode = engine(1, schedulers=SchedulerLimits(max_num_seqs=int(random.choice([1, 2, 8]))))
        pools = with_prefill_blocks(decode, kv_blocks)
        assert pools.prefill is not None
        decodes, prefills = (ReplicaSet(count=n, router="least-loaded") for n in (1 + seed % 2, 2))
        if seed:
            pools = replace(pools, prefill=replace(pools.prefill, replicas=prefills))
            pools = replace(pools, replicas=decodes)
        traffic = with_prefixes(random, requests=80, rate_per_s=float(random.choice([10.0, 40.0])))
        traffic = traffic if cached else replace(traffic, blocks=None)
        outcomes.append(is_held_up(pools, traffic))
        for judged in (None, np.arange(80) < 50):
            ahead = simulate(pools, traffic, judged=judged, logs=False)
            one_by_one = simulate(pools, traffic, judged=judged, on_step=lambda *_, **__: None)
            assert ahead.ttft_s.tolist() == one_by_one.ttft_s.tolist(), (seed, kv_blocks)
            assert ahead.e2e_s.tolist() == one_by_one.e2e_s.tolist(), (seed, kv_blocks)
            assert ahead.chip_watts == pytest.approx(one_by_one.chip_watts, rel=1e-9)
            if judged is None or (decodes.count == 1 and is_held_up(pools, traffic, judged)):
                assert ahead.served.steps == one_by_one.served.steps, (seed, kv_blocks)
            # Of those that are judged in part, others end at other steps.
    assert {*outcomes} == {False, True}


def with_prefixes(random: np.random.Generator, *, requests: int, rate_per_s: float) -> Traffic:
    """Prompts of whole blocks, that begin with one of 12 prefixes of 8."""
    prefix, own = random.integers(0, 12, requests), random.integers(1, 14, requests)
    block_tokens = SchedulerLimits().block_tokens
    ends = np.stack([np.full(requests, 8), 8 + own], axis=1) * block_tokens
    names = np.stack([prefix, 1_000 + np.arange(requests)], axis=1)
    return Traffic(
        arrival_s=np.sort(random.uniform(0.0, requests / rate_per_s, requests)),
        prompt_tokens=ends[:, 1],
        output_tokens=random.integers(2, 20, requests),
        blocks=PromptBlocks(
            names=names.ravel(), end_tokens=ends.ravel(), begin=2 * np.arange(requests + 1)
        ),
    )


@pytest.mark.long
@given(
    seed=st.integers(0, 1_000),
    rate_per_s=st.sampled_from([5.0, 60.0, 400.0]),
    engines=st.integers(2, 5),
    judged=st.sampled_from([60, 45]),
    output_tokens=st.sampled_from([1, 40]),
    kv_blocks=st.sampled_from([80, 4_000]),
)
@settings(max_examples=12, deadline=None)
def test_engines_that_share_by_load_go_ahead_as_step_by_step(
    seed: int, rate_per_s: float, engines: int, judged: int, output_tokens: int, kv_blocks: int
) -> None:
    one_pool = engine(2, replicas=ReplicaSet(count=engines, router="least-loaded"))
    one_pool = replace(one_pool, limits=replace(one_pool.limits, kv_blocks_per_rank=kv_blocks))
    lengths = replace(LENGTHS, output=Uniform(least=1, most=output_tokens))
    traffic = Traffic.drawn(rate_per_s=rate_per_s, lengths=lengths, seed=seed, requests=60)
    mask = np.arange(60) < judged

    ahead = simulate(one_pool, traffic, judged=mask, logs=False)
    one_by_one = simulate(one_pool, traffic, judged=mask, on_step=lambda *_, **__: None)

    assert ahead.ttft_s.tolist() == one_by_one.ttft_s.tolist()
    assert ahead.e2e_s.tolist() == one_by_one.e2e_s.tolist()
    assert ahead.chip_watts == pytest.approx(one_by_one.chip_watts, rel=1e-9)
    assert ahead.served.steps >= one_by_one.served.steps


@pytest.mark.parametrize("judged", [None, np.arange(len(TRAFFIC)) < 100])
def test_pools_that_go_ahead_make_room_for_steps(
    judged: Bools | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(POOLS, TRAFFIC, judged=judged, logs=False)
    for room in ("_FIRST_STEPS", "_STEPS_TO_ADD"):
        monkeypatch.setattr(run_log, room, 8)
    often = simulate(POOLS, TRAFFIC, judged=judged, logs=False)
    assert often.served.steps == whole.served.steps > 100
    assert often.chip_watts == pytest.approx(whole.chip_watts)
    np.testing.assert_array_equal(often.served.last_token_s, whole.served.last_token_s)


@pytest.mark.long
def test_judged_requests_get_the_same_times_from_pools_that_go_ahead() -> None:
    judged = np.arange(len(TRAFFIC)) < 40
    ahead = simulate(POOLS, TRAFFIC, judged=judged)
    one_by_one = simulate(POOLS, TRAFFIC, judged=judged, on_step=lambda *_, **__: None)
    assert ahead.ttft_s.tolist() == one_by_one.ttft_s.tolist()
    assert ahead.e2e_s.tolist() == one_by_one.e2e_s.tolist()
    assert ahead.chip_watts == pytest.approx(one_by_one.chip_watts, rel=1e-12)
    assert one_by_one.served.steps <= ahead.served.steps
