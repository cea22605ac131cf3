"""A machine with what drafts: HBM, KV and time, by hand and against models of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.systems import SYSTEMS
from emulator.timing.speculation import draft_passes
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_time import DRAFT, combine

SYSTEM = SYSTEMS["trn3-nl72x2"]
PARTITION = Partition(chips=8, tp=2, ep=8, lnc=2)
LLAMA, DRAFTER = MODELS["llama-3.1-70b"], MODELS["llama-3.1-8b"]


def batch(verified: list[int] | None, made: list[int] | None) -> StepBatch:
    """Two decodes on rank 0, one on rank 1, a chunk of a prompt on rank 2."""
    return StepBatch(
        ranks=4,
        rank=np.array([0, 0, 1, 2]),
        new_tokens=np.array([1, 1, 1, 40]),
        context_tokens=np.array([100, 900, 30, 0]),
        logit_rows=np.array([2, 1, 0, 0]),
        verified_drafts=None if verified is None else np.array(verified),
        made_drafts=None if made is None else np.array(made),
    )


def machine(model: ModelSpec, **drafts: Any) -> Machine:
    placement = ExpertPlacement.even(layers=model.moe_layers, experts=model.experts, chips=8, ep=8)
    return Machine(SYSTEM, model, PARTITION, placement, calibration=ROOFLINE, **drafts)


class TestTime:
    def test_drafts_of_a_batch_are_those_that_it_counts_and_all_decodes_have_them_without_count(
        self,
    ) -> None:
        costs = machine(LLAMA, draft_tokens=3).cost_model
        plain = machine(LLAMA).cost_model

        counted = costs.cost(batch([3, 3, 3, 0], [0, 0, 0, 0]))
        assert costs.cost(batch(None, None)).duration_ns == counted.duration_ns
        none = costs.cost(batch([0, 0, 0, 0], [0, 0, 0, 0]))
        assert none.duration_ns == plain.cost(batch(None, None)).duration_ns
        assert none.rank_ns[0] < costs.cost(batch([3, 0, 0, 0], None)).rank_ns[0]
        assert none.chip_joules == pytest.approx(plain.cost(batch(None, None)).chip_joules)

    @pytest.mark.parametrize("made", [[3, 3, 3, 0], [3, 0, 1, 0], [0, 0, 0, 0]])
    def test_a_drafting_model_takes_the_time_of_its_own_steps_after_the_step(
        self, made: list[int]
    ) -> None:
        costs = machine(LLAMA, draft_tokens=3, draft_model=DRAFTER).cost_model
        alone = StepCostModel(SYSTEM, DRAFTER, PARTITION, calibration=ROOFLINE)
        given = batch([2, 0, 3, 0], made)

        cost = costs.cost(given)

        passes = draft_passes(given, 3)
        assert len(passes) == max(1, *made)
        expected_ns = sum(alone.cost(each).duration_ns for each in passes)
        assert cost.parts_ns[DRAFT] == pytest.approx(expected_ns, rel=1e-3)
        without = machine(LLAMA, draft_tokens=3).cost_model.cost(given)
        assert cost.duration_ns - without.duration_ns == pytest.approx(cost.parts_ns[DRAFT], abs=2)
        assert cost.chip_joules > without.chip_joules

    def test_compiled_and_counted_steps_agree(self) -> None:
        costs = machine(LLAMA, draft_tokens=3, draft_model=DRAFTER).cost_model
        given = batch([2, 0, 3, 0], [3, 1, 0, 0])
        terms = costs.terms(given)
        assert terms is not None
        assert len(terms.drafts) == 3
        counted = combine(terms, costs.calibration, costs.overlap)
        assert costs.cost(given).duration_ns == pytest.approx(counted.duration_ns, rel=1e-6)


class TestMemory:
    def test_a_drafting_model_is_held_as_it_would_be_alone(self) -> None:
        plain, drafting = machine(LLAMA), machine(LLAMA, draft_tokens=2, draft_model=DRAFTER)
        alone = machine(DRAFTER)

        held = _weights(drafting)
        drafts = {name: count for name, count in held.items() if name.startswith("draft model's ")}
        assert {name.removeprefix("draft model's "): n for name, n in drafts.items()} == (
            _weights(alone)
        )
        assert {name: held[name] for name in held.keys() - drafts} == _weights(plain)
        assert drafting.hbm.kv_token_bytes_on_core == (
            plain.hbm.kv_token_bytes_on_core + alone.hbm.kv_token_bytes_on_core
        )
        assert drafting.kv_tokens_per_rank < plain.kv_tokens_per_rank

    def test_a_layer_that_drafts_is_a_layer_more_and_its_projection(self) -> None:
        model = replace(MODELS["deepseek-v3"], layers=5)
        plain, deeper = machine(model), machine(replace(model, layers=6))
        drafting = machine(model, draft_tokens=1, draft_module=True)

        held = _weights(drafting)
        joining = held.pop("draft joining")
        assert held == _weights(deeper)
        # 2 x 7,168 rows to 7,168, over 16 chips' cores of a rank: four logical cores a chip.
        assert joining == pytest.approx(
            2 * 7_168**2 * model.weight_bytes_per_param / PARTITION.tp, abs=8
        )
        assert drafting.hbm.kv_token_bytes_on_core == deeper.hbm.kv_token_bytes_on_core
        # Slots that come or go are those of the further layer too.
        drafting.place_experts(drafting.placement)
        assert _weights(drafting) == held | {"draft joining": joining}
        assert int(drafting.capacity().max()) >= drafting.placement.slots
        assert plain.kv_tokens_per_rank > drafting.kv_tokens_per_rank


def _weights(machine: Machine) -> dict[str, int]:
    """Bytes of the first chip's weights by the name of their group."""
    found: dict[str, int] = {}
    for stack in machine.hbm.usage()[0]:
        for owner, count in stack.owner_bytes.items():
            use, _, name = owner.partition("/")
            if use == "weights":
                found[name] = found.get(name, 0) + count
    return found
