"""Drafts of the compiled schedulers: cases by hand, and the share that is right."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.partition import Partition
from emulator.timing.draft_acceptance import DraftMethod, draft_acceptance
from emulator.ultraserver.step_time import combine
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.traffic.engine_limits import EngineLimits

LIMITS = EngineLimits(
    max_num_batched_tokens=64,
    max_num_seqs=4,
    kv_blocks_per_rank=200,
    block_tokens=16,
    max_model_len=2_048,
    prefill_policy="none",
    speculative_tokens=2,
    acceptance=(1.0,),
)


def traffic(requests: int, output_tokens: int) -> Traffic:
    """Prompts of ten tokens that all come at once."""
    return Traffic(
        arrival_s=np.zeros(requests),
        prompt_tokens=np.full(requests, 10),
        output_tokens=np.full(requests, output_tokens),
    )


def run(
    limits: EngineLimits, asked: Traffic, *, seed: int = 0
) -> tuple[list[list[tuple[int, int, int]]], list[list[int]]]:
    """Of each step on one rank: request, new tokens and context of its rows; and its tokens."""
    made = LockstepSchedulers.replicas(asked, limits, 1, 1, seed=seed)[0]
    made.admit(0, 0)
    rows, given = [], []
    while made.requests:
        count = len(made.schedule(now_ns=0).rank)
        fields = made.arrays.rows[:count][["request", "new", "context"]]
        rows.append(fields.tolist())
        tokens = made.give_tokens(len(rows))
        given.append(tokens.tolist())
        last = made.arrays.requests["tokens_left"] == 0
        assert set(made.ended_among(tokens)) == set(tokens[last[tokens]])
        assert len(made.ended_among(tokens)) == made.ended
    return rows, given


def test_right_drafts_come_with_the_token_that_verifies_them() -> None:
    rows, given = run(LIMITS, traffic(1, 7))

    assert rows == [[(0, 10, 0)], [(0, 3, 10)], [(0, 3, 13)]]
    assert [len(each) for each in given] == [1, 3, 3]


def test_wrong_drafts_are_computed_and_given_back() -> None:
    rows, given = run(replace(LIMITS, acceptance=(0.0,)), traffic(1, 4))

    assert rows == [[(0, 10, 0)], [(0, 3, 10)], [(0, 3, 11)], [(0, 3, 12)]]
    assert [len(each) for each in given] == [1, 1, 1, 1]


def test_the_last_verification_gives_no_more_tokens_than_were_asked_for() -> None:
    _, given = run(LIMITS, traffic(2, 6))

    assert given == [[0, 1], [0, 0, 0, 1, 1, 1], [0, 0, 1, 1]]


def test_drafts_stop_before_the_end_of_the_context() -> None:
    # 19 of the 20 tokens may have positions: the sampled one needs the last.
    rows, _ = run(replace(LIMITS, max_model_len=20, acceptance=(0.0,)), traffic(1, 10))

    assert [row for (row,) in rows][-3:] == [(0, 3, 16), (0, 2, 17), (0, 1, 18)]


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "blocks"),
    [
        (7, 1, 2),  # 7 tokens, and 2 drafts that are made after the prompt
        (4, 2, 2),  # 5, 2 drafts that are verified behind the first token, and 2 after them
        (60, 4, 8),  # 63, and no more than the context
    ],
)
def test_a_request_without_blocks_for_its_drafts_is_refused(
    prompt_tokens: int, output_tokens: int, blocks: int
) -> None:
    schedulers = SchedulerLimits(
        speculative_tokens=2, acceptance=(0.0,), block_tokens=8, max_model_len=64
    )
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=1, ep=1, lnc=2), schedulers=schedulers
    )
    asked = Traffic(
        arrival_s=np.zeros(1),
        prompt_tokens=np.array([prompt_tokens]),
        output_tokens=np.array([output_tokens]),
    )

    def served_with(kv_blocks: int) -> int:
        limits = replace(deployment.limits, kv_blocks_per_rank=kv_blocks)
        return simulate(replace(deployment, limits=limits), asked).served.tokens

    assert served_with(blocks + 1) == output_tokens
    with pytest.raises(ConfigError, match=f"at least {blocks + 1}, for the .* and its drafts"):
        served_with(blocks)


def test_the_share_of_right_drafts_is_the_assumed_one_of_each_draft() -> None:
    limits = replace(LIMITS, acceptance=(0.8, 0.5))
    _, given = run(limits, traffic(4, 1_001), seed=3)
    runs = np.array([np.bincount(each, minlength=4) for each in given[1:-300]]).ravel()
    tried = len(runs)

    assert (runs >= 2).sum() / tried == pytest.approx(0.8, abs=5 * (0.16 / tried) ** 0.5)
    second = (runs >= 2).sum()
    assert (runs == 3).sum() / second == pytest.approx(0.5, abs=5 * (0.25 / second) ** 0.5)


def test_which_drafts_are_right_depends_on_seed_and_position_alone() -> None:
    limits, asked = replace(LIMITS, acceptance=(0.6,)), traffic(4, 60)

    def verified(limits: EngineLimits, seed: int) -> list[list[int]]:
        """Tokens of each verification of each request."""
        _, given = run(limits, asked, seed=seed)
        counts = np.array([np.bincount(each, minlength=4) for each in given])
        return [column[column > 0].tolist() for column in counts.T]

    together = verified(limits, 0)
    assert together == verified(replace(limits, max_num_seqs=1), 0)
    assert together != verified(limits, 1)


def test_a_deployment_has_the_drafts_of_its_cost_model() -> None:
    schedulers = SchedulerLimits(speculative_tokens=3, acceptance=(1.0,))
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, ep=2, lnc=2), schedulers=schedulers
    )
    assert deployment.cost_model.draft_tokens == 3
    without = replace(deployment.limits, speculative_tokens=0, acceptance=())
    with pytest.raises(ConfigError, match="speculative_tokens=0: expected 3"):
        replace(deployment, limits=without)

    few, many = (
        simulate(
            SimulatedDeployment.of(
                "trn3-nl72x2",
                "qwen3-30b-a3b",
                Partition(chips=2, ep=2, lnc=2),
                schedulers=replace(schedulers, acceptance=(rate,)),
            ),
            traffic(4, 40),
        ).served
        for rate in (0.0, 1.0)
    )
    assert few.tokens == many.tokens == 160
    assert (few.steps, many.steps) == (40, 11)
    assert many.emulated_s < few.emulated_s / 3


def test_drafts_have_published_shares_and_those_found_in_the_text_no_module() -> None:
    def deployment(method: DraftMethod) -> SimulatedDeployment:
        return SimulatedDeployment.of(
            "trn3-nl72x2",
            "qwen3-30b-a3b",
            Partition(chips=2, ep=2, lnc=2),
            schedulers=SchedulerLimits(speculative_tokens=3, draft_method=method),
        )

    batch = StepBatch(
        ranks=2,
        rank=np.array([0, 1]),
        new_tokens=np.array([1, 1]),
        context_tokens=np.array([100, 100]),
        logit_rows=np.array([1, 1]),
    )
    module, found = deployment("eagle"), deployment("ngram")

    assert module.limits.acceptance == draft_acceptance("eagle").rates(3)
    with_module, without = module.cost_model.cost(batch), found.cost_model.cost(batch)
    assert with_module.duration_ns > without.duration_ns
    assert "draft" in with_module.parts_ns
    assert "draft" not in without.parts_ns
    terms = found.cost_model.terms(batch)
    assert terms is not None
    calibration = found.cost_model.calibration
    assert combine(terms, calibration).duration_ns == pytest.approx(without.duration_ns, abs=1)
    assert SchedulerLimits(speculative_tokens=3, acceptance=(0.5,)).published_acceptance() is None
    said = SchedulerLimits(speculative_tokens=3, draft_method="eagle").published_acceptance()
    assert said is not None
    assert said.startswith("assumed: acceptance 0.622, 0.572, 0.57 by place")
