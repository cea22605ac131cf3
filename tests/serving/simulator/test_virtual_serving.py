"""Traffic served in virtual time by the compiled schedulers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Bound
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform, lognormal_of_median
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.engine.scheduler_state import RankQueues
from serving.simulator.serve_traffic import serve_in_virtual_time
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.traffic.engine_limits import EngineLimits
from serving.traffic.serving_run import Ending, ServingRun
from tests.half_of_all import half_of_all
from tests.serving.plugin.engine_config import engine_config, kv_pool
from tests.serving.simulator import vllm_serving
from tests.serving.traffic.kept_levels import attainment, meets, tpot_percentile_s

BLOCK_TOKENS = 16
CACHES = [{}, {"prefix_caching": False}, {"long_prefill_token_threshold": 20}]
LIMITS = EngineLimits(
    max_num_batched_tokens=64,
    max_num_seqs=8,
    kv_blocks_per_rank=1_000,
    block_tokens=BLOCK_TOKENS,
    prefill_policy="none",
)
SHORT = IndependentLengths(
    prompt=lognormal_of_median(median=60, sigma=1.0, most=400),
    output=lognormal_of_median(median=12, sigma=1.0, most=60),
)


def cost_model_on(chips: int) -> StepCostModel:
    return StepCostModel(
        system_by_name("trn3-nl72x2"),
        model_by_name("qwen3-30b-a3b"),
        Partition(chips=chips, ep=chips),
        calibration=ROOFLINE,
    )


@pytest.fixture(scope="module")
def one_chip() -> StepCostModel:
    return cost_model_on(1)


@pytest.fixture(scope="module")
def four_chips() -> StepCostModel:
    return cost_model_on(4)


def served(asked: Traffic, costs: StepCostModel, limits: EngineLimits, **how: Any) -> ServingRun:
    deployment = SimulatedDeployment(cost_model=costs, limits=limits)
    return serve_in_virtual_time(deployment, asked, **how)[0]


def traffic(*requests: tuple[float, int, int]) -> Traffic:
    """Requests given as arrival, prompt and output."""
    arrival_s, prompt, output = zip(*requests, strict=True)
    return Traffic(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
    )


def step_ns(cost_model: StepCostModel, *rows: tuple[int, int], logits: int) -> int:
    """Time of a step of one rank: rows are new tokens and their context."""
    new, context = np.array(rows, dtype=np.int64).T
    batch = StepBatch(
        ranks=1,
        rank=np.zeros(len(rows), dtype=np.int64),
        new_tokens=new,
        context_tokens=context,
        logit_rows=np.array([logits], dtype=np.int64),
    )
    return cost_model.cost(batch).duration_ns


def arrays(run: ServingRun) -> dict[str, Any]:
    """All that a run says, to compare; NaN is itself."""
    # The reference does not count what of a prompt was found in the cache.
    names = [name for name in run.__slots__ if name not in ("traffic", "hits")]
    return {
        name: getattr(run, name).tolist().__repr__()
        if isinstance(getattr(run, name), np.ndarray)
        else getattr(run, name)
        for name in names
    }


def test_one_request_takes_the_sum_of_its_steps(one_chip: StepCostModel) -> None:
    run = served(traffic((2.0, 100, 4)), one_chip, LIMITS)
    first = step_ns(one_chip, (64, 0), logits=0)
    second = step_ns(one_chip, (36, 64), logits=1)
    decodes = [step_ns(one_chip, (1, context), logits=1) for context in (100, 101, 102)]
    ends_ns = 2 * NS_PER_S + np.cumsum([first, second, *decodes])

    assert run.step_end_s.tolist() == (ends_ns / NS_PER_S).tolist()
    assert run.first_token_s.tolist() == [ends_ns[1] / NS_PER_S]
    assert run.last_token_s.tolist() == [ends_ns[-1] / NS_PER_S]
    assert run.step_tokens.tolist() == [0, 1, 1, 1, 1]
    assert run.busy_s == (ends_ns[-1] - 2 * NS_PER_S) / NS_PER_S
    assert run.kv_blocks_used_max == 7  # 103 tokens in blocks of 16


def test_the_energy_is_that_of_the_steps_and_of_the_idle_time_before(
    four_chips: StepCostModel,
) -> None:
    early, late = (served(traffic((at_s, 20, 1)), four_chips, LIMITS) for at_s in (0.0, 2.0))
    batch = StepBatch(
        ranks=4,
        rank=np.zeros(1, dtype=np.int64),
        new_tokens=np.array([20], dtype=np.int64),
        context_tokens=np.zeros(1, dtype=np.int64),
        logit_rows=np.array([1, 0, 0, 0], dtype=np.int64),
    )

    assert early.joules == four_chips.cost(batch).chip_joules
    assert late.joules - early.joules == pytest.approx(2.0 * 4 * four_chips.idle_chip_watts)
    assert early.empty_rank_steps == 3


def test_a_request_that_comes_during_a_step_waits_for_its_end(one_chip: StepCostModel) -> None:
    prefill = step_ns(one_chip, (64, 0), logits=1)
    run = served(traffic((0.0, 64, 2), (0.5 * prefill / NS_PER_S, 20, 1)), one_chip, LIMITS)
    both = step_ns(one_chip, (1, 64), (20, 0), logits=2)

    assert run.first_token_s.tolist() == [prefill / NS_PER_S, (prefill + both) / NS_PER_S]
    assert run.token_request.tolist() == [0, 0, 1]


@pytest.mark.long
@settings(max_examples=12)
@given(
    seed=st.integers(0, 1_000),
    rate_per_s=st.sampled_from([50.0, 2_000.0]),
    policy=st.sampled_from(["none", "capped:20", "balanced:4:8:32", None]),
    blocks=st.sampled_from([40, 1_000]),
)
def test_every_request_gets_the_tokens_it_asked_for_and_time_adds_up(
    four_chips: StepCostModel, seed: int, rate_per_s: float, policy: str | None, blocks: int
) -> None:
    asked = Traffic.drawn(rate_per_s=rate_per_s, lengths=SHORT, seed=seed, requests=60)
    limits = replace(LIMITS, prefill_policy=policy, kv_blocks_per_rank=blocks)
    run = served(asked, four_chips, limits)

    assert run.ending is Ending.SERVED
    counts = np.bincount(run.token_request, minlength=60)
    assert counts.tolist() == asked.output_tokens.tolist()
    assert (run.first_token_s > asked.arrival_s).all()
    for request in range(60):
        token_s = run.token_s[run.token_request == request]
        assert (np.diff(token_s) > 0).all()
        assert token_s[[0, -1]].tolist() == [run.first_token_s[request], run.last_token_s[request]]
    assert (np.diff(run.step_end_s, prepend=0.0) > 0).all()
    assert run.busy_s <= run.emulated_s
    idle_joules = (run.emulated_s - run.busy_s) * 4 * four_chips.idle_chip_watts
    assert run.joules >= idle_joules + run.busy_s * 4 * four_chips.idle_chip_watts
    assert 0 < run.kv_blocks_used_max < blocks


@pytest.mark.long
def test_the_same_traffic_is_served_the_same_every_time(four_chips: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=1_000, lengths=SHORT, seed=1, requests=80)

    assert arrays(served(asked, four_chips, LIMITS)) == arrays(served(asked, four_chips, LIMITS))


@pytest.mark.long
def test_one_seat_and_replies_of_one_token_make_the_queue_of_the_textbook(
    one_chip: StepCostModel,
) -> None:
    """Poisson arrivals, one server, a fixed service time: M/D/1."""
    service_ns = step_ns(one_chip, (32, 0), logits=1)
    service_s, load = service_ns / NS_PER_S, 0.7
    lengths = IndependentLengths(prompt=Uniform(least=32, most=32), output=Uniform(least=1, most=1))
    asked = Traffic.drawn(rate_per_s=load / service_s, lengths=lengths, seed=4, requests=6_000)
    run = served(asked, one_chip, replace(LIMITS, max_num_seqs=1))

    # Each begins when it has come and the one before is done: exactly, in ns (Lindley).
    end_ns, expected = 0, []
    for arrival_ns in np.rint(asked.arrival_s * NS_PER_S).astype(int).tolist():
        end_ns = max(end_ns, arrival_ns) + service_ns
        expected.append(end_ns / NS_PER_S)
    assert run.last_token_s.tolist() == expected
    # And on average as long as Pollaczek and Khinchine say. Waits of neighbours hang together over
    # some 1 / (1 - load)^2 requests, which leaves about 500 that are independent: 5 % each sigma.
    wait_s = load * service_s / (2 * (1 - load))
    assert (run.ttft_s - service_s).mean() == pytest.approx(wait_s, rel=0.15)
    assert run.busy_s / run.emulated_s == pytest.approx(load, rel=0.05)


@pytest.mark.long
def test_one_rank_is_served_as_by_the_scheduler_of_vllm_alone(one_chip: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=400, lengths=SHORT, seed=5, requests=60)
    limits = replace(LIMITS, kv_blocks_per_rank=40, prefix_caching=False)
    run = served(asked, one_chip, limits)
    first_s, last_s = served_by_vllm(asked, one_chip, limits)

    assert run.preemptions > 0
    assert run.first_token_s.tolist() == first_s
    assert run.last_token_s.tolist() == last_s


def served_by_vllm(
    asked: Traffic, cost_model: StepCostModel, limits: EngineLimits
) -> tuple[list[float], list[float]]:
    """First and last token of each request, by one plain scheduler and a loop as simple."""
    config = engine_config(
        1,
        max_model_len=8_192,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        enable_prefix_caching=False,
    )
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=kv_pool(config, limits.kv_blocks_per_rank),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )
    times: list[list[float]] = [[] for _ in range(len(asked))]
    coming = [
        Request(
            str(number),
            [1] * int(asked.prompt_tokens[number]),
            SamplingParams(max_tokens=int(asked.output_tokens[number]), ignore_eos=True),
            None,
            arrival_time=0.0,
        )
        for number in range(len(asked))
    ]
    arrival_ns = np.rint(asked.arrival_s * NS_PER_S).astype(int).tolist()
    requests = {request.request_id: request for request in coming}
    now_ns = 0
    while coming or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now_ns = max(now_ns, arrival_ns[len(asked) - len(coming)])
        while coming and arrival_ns[len(asked) - len(coming)] <= now_ns:
            scheduler.add_request(coming.pop(0))
        # A request that is preempted in this step starts again at 0: look after the decision.
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        new = [output.num_scheduled_tokens[name] for name in names]
        end = [requests[name].num_computed_tokens for name in names]
        samples = [done == requests[name].num_tokens for name, done in zip(names, end, strict=True)]
        rows = [(count, done - count) for count, done in zip(new, end, strict=True)]
        now_ns += step_ns(cost_model, *rows, logits=sum(samples))
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: row for row, name in enumerate(names)},
                sampled_token_ids=[[9] if sample else [] for sample in samples],
            ),
        )
        for name, sample in zip(names, samples, strict=True):
            times[int(name)].extend([now_ns / NS_PER_S] * sample)
    return [at_s[0] for at_s in times], [at_s[-1] for at_s in times]


@pytest.mark.long
def test_few_blocks_preempt_and_cost_time_but_no_token(one_chip: StepCostModel) -> None:
    asked = traffic((0.0, 60, 60), (0.0, 60, 60))
    # Each needs 8 blocks in the end; both have 4 at first.
    scarce, ample = (
        served(asked, one_chip, replace(LIMITS, max_num_batched_tokens=256, kv_blocks_per_rank=n))
        for n in (1 + 12, 1 + 16)
    )

    assert (scarce.preemptions, ample.preemptions) == (1, 0)
    assert (scarce.kv_blocks_used_max, ample.kv_blocks_used_max) == (12, 16)
    assert scarce.tokens == ample.tokens == 120
    assert scarce.first_token_s.tolist() == ample.first_token_s.tolist()
    assert scarce.emulated_s > ample.emulated_s


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "kv_blocks", "cache"),
    half_of_all(["none", "balanced:4:8:32", "staggered:1", "capped:9"], [40, 1_000], CACHES),
)
def test_a_run_is_that_of_vllm_s_schedulers(
    four_chips: StepCostModel, policy: str, kv_blocks: int, cache: dict[str, Any]
) -> None:
    asked = Traffic.drawn(rate_per_s=3_000, lengths=SHORT, seed=6, requests=90)
    limits = replace(
        LIMITS, prefill_policy=policy, max_num_seqs=4, kv_blocks_per_rank=kv_blocks, **cache
    )
    reference = vllm_serving.serve_in_virtual_time(asked, four_chips, limits)

    assert arrays(served(asked, four_chips, limits)) == arrays(reference)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["none", "balanced:4:8:32"])
@pytest.mark.parametrize("kv_blocks", [40, 1_000])
def test_a_run_with_priorities_is_that_of_vllm_s_schedulers(
    four_chips: StepCostModel, policy: str, kv_blocks: int
) -> None:
    drawn = Traffic.drawn(rate_per_s=3_000, lengths=SHORT, seed=6, requests=90)
    asked = replace(drawn, priority=np.random.default_rng(6).integers(0, 4, 90))
    limits = replace(
        LIMITS,
        prefill_policy=policy,
        max_num_seqs=4,
        kv_blocks_per_rank=kv_blocks,
        scheduling_policy="priority",
    )
    run = served(asked, four_chips, limits)

    assert arrays(run) == arrays(vllm_serving.serve_in_virtual_time(asked, four_chips, limits))
    assert (run.preemptions > 0) == (kv_blocks < 100)
    means_s = [run.ttft_s[asked.priority == level].mean() for level in range(4)]
    assert means_s == sorted(means_s)
    by_arrival = replace(limits, scheduling_policy="fcfs")
    assert arrays(served(asked, four_chips, by_arrival)) == arrays(
        served(drawn, four_chips, by_arrival)
    )


def just_kept(name: str, limit_s: float, *, percentile: float) -> Bound:
    """A limit in ms that a time of `limit_s` keeps whatever the rounding."""
    return Bound(measure=f"{name}_ms", limit=limit_s * 1e3 * (1 + 1e-12), percentile=percentile)


@pytest.mark.long
def test_what_is_hopeless_ends_early_and_would_have_been_missed(one_chip: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=2_000, lengths=SHORT, seed=7, requests=200)
    full = served(asked, one_chip, LIMITS)
    level = just_kept("ttft", percentile(full.ttft_s, 50), percentile=90)
    run = served(asked, one_chip, LIMITS, levels=[Bound(measure="ttft_ms", limit=1e9), level])

    assert run.ending is Ending.HOPELESS
    assert meets(run, level) is False
    assert meets(full, level) is False
    assert run.steps < full.steps
    # Until then it is the same run, and the share it gives is a bound on the whole one's.
    assert run.step_end_s.tolist() == full.step_end_s[: run.steps].tolist()
    assert attainment(run, level) >= attainment(full, level)


@pytest.mark.long
def test_levels_may_be_about_some_of_the_requests_only(one_chip: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=2_000, lengths=SHORT, seed=7, requests=200)
    full = served(asked, one_chip, LIMITS)
    level = just_kept("ttft", percentile(full.ttft_s, 30), percentile=90)
    early = np.arange(200) < 20

    assert meets(full, level) is False
    assert meets(full, level, early) is True
    assert served(asked, one_chip, LIMITS, levels=[level]).ending is Ending.HOPELESS
    ended = served(asked, one_chip, LIMITS, levels=[level], among=early)
    # What comes after them changes nothing, and is left when they have their tokens.
    assert ended.ending is Ending.JUDGED
    assert ended.last_token_s[early].tolist() == full.last_token_s[early].tolist()
    assert ended.emulated_s == np.max(full.last_token_s[early])
    assert not ended.finished.all()
    run = served(asked, one_chip, LIMITS, levels=[level], among=~early)
    assert (run.ending, meets(run, level, ~early)) == (Ending.HOPELESS, False)


@pytest.mark.long
def test_levels_that_can_be_met_change_nothing(one_chip: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=2_000, lengths=SHORT, seed=8, requests=100)
    full = served(asked, one_chip, LIMITS)
    levels = [
        just_kept("ttft", percentile(full.ttft_s, 99), percentile=99),
        just_kept("tpot", tpot_percentile_s(full, 90), percentile=90),
    ]

    assert arrays(served(asked, one_chip, LIMITS, levels=levels)) == arrays(full)
    assert [meets(full, level) for level in levels] == [True, True]


@pytest.mark.long
def test_no_step_begins_when_the_time_is_up(one_chip: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=10_000, lengths=SHORT, seed=9, requests=50)
    full = served(asked, one_chip, LIMITS)
    assert full.busy_s == pytest.approx(full.emulated_s - asked.arrival_s[0])  # never idle
    step, until_s = 20, float(full.step_end_s[20])
    for change_s, steps in ((-1e-9, step + 1), (0.0, step + 1), (1e-9, step + 2)):
        run = served(asked, one_chip, LIMITS, until_s=until_s + change_s)

        assert (run.ending, run.steps) == (Ending.TIME_UP, steps)
        assert run.step_end_s.tolist() == full.step_end_s[:steps].tolist()
        assert np.isnan(run.last_token_s).any()


@pytest.mark.long
def test_an_observer_sees_every_step_as_it_was_costed(four_chips: StepCostModel) -> None:
    asked = Traffic.drawn(rate_per_s=3_000, lengths=SHORT, seed=10, requests=30)
    begins_ns, seen = [], []

    def look(
        cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[RankQueues]
    ) -> None:
        begins_ns.append(begin_ns)
        seen.append((cost.duration_ns, cost.chip_joules, int(batch.logit_rows.sum())))
        assert sum(queue.running for queue in queues) >= len(batch.rank)

    run = served(asked, four_chips, LIMITS, on_step=look)
    duration_ns, joules, tokens = np.array(seen).T

    assert ((np.array(begins_ns) + duration_ns) / NS_PER_S).tolist() == run.step_end_s.tolist()
    assert tokens.tolist() == run.step_tokens.tolist()
    idle_s = run.emulated_s - run.busy_s
    assert run.joules == pytest.approx(joules.sum() + idle_s * 4 * four_chips.idle_chip_watts)
    assert arrays(run) == arrays(served(asked, four_chips, LIMITS))


def test_no_traffic_takes_no_time(one_chip: StepCostModel) -> None:
    nothing = traffic((0.0, 1, 1)).chosen(np.zeros(1, dtype=np.bool_))
    run = served(nothing, one_chip, LIMITS)

    assert (run.ending, run.steps, run.emulated_s, run.joules) == (Ending.SERVED, 0, 0.0, 0.0)
    assert attainment(run, Bound(measure="ttft_ms", limit=1e3)) == 1.0


def test_a_longest_request_that_just_fits_is_served(one_chip: StepCostModel) -> None:
    asked = traffic((0.0, 60, 5))  # 64 tokens of KV, since the last is never written
    run = served(asked, one_chip, replace(LIMITS, kv_blocks_per_rank=5, max_model_len=65))

    assert run.tokens == 5


def test_a_context_may_be_longer_than_the_stand_in_s(one_chip: StepCostModel) -> None:
    model = replace(one_chip.model, max_context_tokens=200_000)
    cost_model = StepCostModel(one_chip.system, model, one_chip.partition, calibration=ROOFLINE)
    limits = replace(LIMITS, max_num_batched_tokens=65_536, kv_blocks_per_rank=20_000)
    run = served(traffic((0.0, 131_070, 6)), cost_model, limits)

    assert (run.tokens, run.steps) == (6, 2 + 5)


def test_a_rank_may_have_several_chips() -> None:
    pairs = StepCostModel(
        system_by_name("trn3-nl72x2"),
        model_by_name("qwen3-30b-a3b"),
        Partition(chips=4, tp=2, ep=4),
        calibration=ROOFLINE,
    )
    run = served(traffic((0.0, 9, 2), (0.0, 9, 2), (0.0, 9, 2)), pairs, LIMITS)

    # Two ranks for three requests, which all fit in the first step.
    assert (run.tokens, run.steps, run.empty_rank_steps) == (6, 2, 0)


@pytest.mark.long
def test_prompts_that_begin_alike_are_found_in_the_cache_as_vllm_finds_them(
    four_chips: StepCostModel,
) -> None:
    rng = np.random.default_rng(2)
    drawn = Traffic.drawn(rate_per_s=90, lengths=SHORT, seed=2, requests=60)
    names = [
        [int(family), int(family) + 10, 1_000 + request, 2_000 + request]
        for request, family in enumerate(rng.integers(0, 3, 60))
    ]
    blocks = PromptBlocks.of(names, tokens=32, prompt_tokens=drawn.prompt_tokens)
    asked = replace(drawn, blocks=blocks)
    limits = replace(LIMITS, prefill_policy=None, kv_blocks_per_rank=60)
    computed = 0

    def count(_: object, batch: StepBatch, **__: object) -> None:
        nonlocal computed
        computed += int(batch.new_tokens.sum())

    run = served(asked, four_chips, limits)
    theirs = vllm_serving.serve_in_virtual_time(asked, four_chips, limits, on_step=count)

    assert arrays(run) == arrays(theirs)
    assert run.preemptions == 0
    needed = int((asked.prompt_tokens + asked.output_tokens - 1).sum())
    assert run.hit_tokens == needed - computed > 1_000
