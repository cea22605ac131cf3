"""The table that admission looks into, beside the cost model that it was made of."""

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.server.gateway.engine_times import backlog_times

STEP_TOKENS = 8_192


def costs(chips: int = 1) -> StepCostModel:
    return StepCostModel(
        system_by_name("trn3-nl72x2"),
        model_by_name("qwen3-30b-a3b"),
        Partition(chips=chips, tp=1, ep=chips, lnc=2),
        calibration=ROOFLINE,
    )


def step_s(model: StepCostModel, tokens: int, decodes: int, context: int) -> float:
    ranks = model.partition.ranks
    rows = 1 + decodes
    batch = StepBatch(
        ranks=ranks,
        rank=np.repeat(np.arange(ranks), rows),
        new_tokens=np.tile(np.array([tokens] + [1] * decodes), ranks),
        context_tokens=np.tile(np.array([0] + [context] * decodes), ranks),
        logit_rows=np.full(ranks, rows),
    )
    return model.cost(batch).duration_ns / NS_PER_S


@pytest.mark.long
@pytest.mark.parametrize("chips", [1, 4])
@pytest.mark.parametrize("decodes", [1, 40, 200])
@pytest.mark.parametrize("context", [0, 2_000])
def test_a_capped_backlog_takes_its_steps(chips: int, decodes: int, context: int) -> None:
    model = costs(chips)
    table = backlog_times(
        model, parse_prefill_policy("capped:512"), seats=256, step_tokens=STEP_TOKENS
    )

    curve = table.beside(decodes=decodes, context_tokens=context, prompt_tokens=0)

    one_s = step_s(model, 512, decodes, context)
    assert curve.step_s_at(5_120) == pytest.approx(one_s, rel=0.05)
    assert curve.wait_s(5_120) == pytest.approx(11 * one_s, rel=0.05)


def test_a_balanced_backlog_is_computed_faster_when_there_is_more_of_it() -> None:
    table = backlog_times(costs(), parse_prefill_policy(None), seats=256, step_tokens=STEP_TOKENS)
    curve = table.beside(decodes=8, context_tokens=500, prompt_tokens=500)

    assert curve.wait_s(65_536) < 3.0 * curve.wait_s(16_384)
    assert curve.wait_s(2**21) == pytest.approx(2.0 * curve.wait_s(2**20))


def test_prompts_that_hold_nobody_s_decode_up_are_computed_in_whole_steps() -> None:
    model = costs()
    table = backlog_times(model, parse_prefill_policy(None), seats=256, step_tokens=STEP_TOKENS)
    curve = table.beside(decodes=None, context_tokens=0, prompt_tokens=0)

    one_s = step_s(model, STEP_TOKENS, 0, 0)
    assert curve.wait_s(STEP_TOKENS) == pytest.approx(2 * one_s, rel=0.01)


@pytest.mark.long
def test_ranks_that_prefill_in_turns_take_as_many_times_as_long() -> None:
    both, one = (
        backlog_times(
            costs(4), parse_prefill_policy(policy), seats=64, step_tokens=STEP_TOKENS
        ).beside(decodes=8, context_tokens=0, prompt_tokens=0)
        for policy in ("staggered:4", "staggered:1")
    )

    drains = [curve.wait_s(40_000) - curve.step_s_at(40_000) for curve in (both, one)]
    assert drains[1] == pytest.approx(4 * drains[0])


def test_long_contexts_and_long_prompts_take_longer() -> None:
    table = backlog_times(costs(), parse_prefill_policy(None), seats=64, step_tokens=STEP_TOKENS)

    def wait_s(context_tokens: float, prompt_tokens: float) -> float:
        return table.beside(
            decodes=32, context_tokens=context_tokens, prompt_tokens=prompt_tokens
        ).wait_s(8_000)

    assert wait_s(20_000, 0) > 1.05 * wait_s(0, 0)
    assert wait_s(0, 30_000) > 1.05 * wait_s(0, 0)
