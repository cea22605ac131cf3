"""What lent groups train, beside the cost model that was asked."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.faults.recovery_time import RecoveryRates
from emulator.memory.training_memory import smallest_training_chips
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.models import model_by_name
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import weights_read
from emulator.ultraserver.training_cost import TrainingCost
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.training_table import group_handover, training_yield
from serving.analysis.steady_state.partitions import PartitionFilter, candidate_partitions
from serving.simulator.job_cost import JobTerms, best_job
from tests.serving.analysis.day.days import CURVE, SYSTEM

MODEL = model_by_name("qwen3-30b-a3b")
RECIPE = TrainingRecipe(sequence_tokens=2_048)


def terms(model: str = "qwen3-30b-a3b", calibration: Calibration = ROOFLINE) -> JobTerms:
    return JobTerms(
        system=SYSTEM,
        model=model_by_name(model),
        recipe=RECIPE,
        calibration=calibration,
        rates=RecoveryRates(),
        start_s=30.0,
    )


@pytest.mark.long
def test_leased_groups_train_at_least_what_the_cost_model_says_of_all_their_chips() -> None:
    found = training_yield(terms(), group_chips=4, groups=4)

    least = smallest_training_chips(SYSTEM, MODEL, RECIPE)
    assert least is not None
    for lent in range(5):
        chips = 4 * lent
        if chips < least:
            assert found.tokens_per_s[lent] == 0
            assert found.watts[lent] == chips * SYSTEM.chip.idle_watts.value
            continue
        cost = TrainingCost(SYSTEM, MODEL, range(chips), RECIPE, calibration=ROOFLINE)
        assert found.tokens_per_s[lent] >= cost.step.tokens_per_s
        assert found.chips_at_work[lent] <= chips
        assert found.start_s[lent] > 30.0
        assert found.save_s[lent] > cost.step.duration_ns / 2e9
    assert (np.diff(found.tokens_per_s) >= 0).all()


def test_a_model_whose_state_fits_nowhere_is_refused_with_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="training state fits 2 chips"):
        training_yield(terms("gpt-oss-120b"), group_chips=1, groups=2)


@pytest.mark.slow  # the search is held by tests/emulator/ultraserver/test_recipe_search.py
def test_a_searched_recipe_trains_what_the_default_one_does_not_hold() -> None:
    asked = replace(terms("qwen3-235b-a22b"), searched=True)
    found = training_yield(asked, group_chips=48, groups=3)

    with pytest.raises(ConfigError, match=r"fits 48 chips .* or --train-recipe searched"):
        training_yield(replace(asked, searched=False), group_chips=48, groups=1)
    assert asked.fewest_chips is not None
    assert asked.fewest_chips <= 48
    assert (np.diff(found.tokens_per_s) > 0).all()
    assert found.chips_at_work.tolist() == [0, 48, 96, 144]
    peak = SYSTEM.chip.tensor_flops_per_s("bf16")
    done = found.flops_per_token * found.tokens_per_s[-1]
    assert found.mfu == pytest.approx(done / (144 * peak))
    assert 0 < found.mfu < 1
    assert "ZeRO" in found.recipe
    job = best_job(asked, range(144))
    assert job is not None
    assert 0.9 < job.step_tokens / (144 * RECIPE.step_tokens_per_chip) <= 1
    assert job.tokens_per_s == found.tokens_per_s[-1]
    assert job.save.bytes_storage >= 14 * asked.model.parameters


def test_a_group_is_empty_when_its_longest_request_has_ended_or_the_grace_time() -> None:
    (candidate,) = candidate_partitions(
        SYSTEM, MODEL, asked=PartitionFilter(chips=(4,), tp=(1,), ep=(4,), lnc=(2,))
    )
    lengths = ObservedLengths(
        prompt_tokens=np.array([10, 10]), output_tokens=np.array([101, 1_001])
    )
    # At the capacity of 2.1 requests/s a first token takes 0.21 s, the others 10 ms each.
    patient = group_handover(terms(), MODEL, candidate, CURVE, lengths, grace_s=30.0)
    assert patient.drain_s == pytest.approx(0.21 + 10.0)
    assert patient.moved_requests_per_rate_s == 0

    hasty = group_handover(terms(), MODEL, candidate, CURVE, lengths, grace_s=5.0)
    assert hasty.drain_s == 5.0
    # Of two kinds alike, the long one is still there for 5.21 s after the grace time.
    assert hasty.moved_requests_per_rate_s == pytest.approx(5.21 / 2)

    of_chip = MODEL.weight_bytes - MODEL.moe_layers * 128 * MODEL.expert_bytes * 3 // 4
    read = weights_read(SYSTEM, np.arange(144), np.full(144, of_chip))
    assert hasty.restore_s == pytest.approx(30.0 + read.duration_ns / 1e9)
