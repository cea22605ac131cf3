from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from tests.emulator.timing.counting_reference import Count, Request, Walk
from tests.emulator.ultraserver.tiny_steps import batch_of

BATCHES: dict[str, list[Request]] = {
    "decode": [(1, 5), (1, 0), (1, 150)],
    "prefill": [(6, 0), (3, 4)],
    "mixed": [(1, 9), (4, 131), (1, 1)],
}


def short(name: str) -> ModelSpec:
    """The model with few of its layers, of every kind that it has: the others are like them."""
    model = MODELS[name]
    return replace(model, layers=model.first_dense_layers + 2 * model.full_attention_every)


def on_one_chip(model: ModelSpec, requests: list[Request], loads: ExpertLoads | None) -> StepCost:
    """A chip that is one core repeats nothing, so that a step is counted once."""
    costs = StepCostModel(TRN3_NL72X2, model, Partition(chips=1, ep=1, lnc=8), calibration=ROOFLINE)
    return costs.cost(batch_of(1, [(0, new, context) for new, context in requests]), loads)


def loads_of(pairs: list[int], distinct: list[int]) -> ExpertLoads | None:
    if not pairs:
        return None
    sent = np.zeros((len(pairs), 1, 1))
    return ExpertLoads(
        pairs=np.array(pairs)[:, None], distinct=np.array(distinct)[:, None], sent=sent
    )


@pytest.mark.long
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_flops_and_bytes_of_every_model_equal_a_slow_count(name: str, batch: str) -> None:
    model, requests = short(name), BATCHES[batch]
    slow: Count = Walk(model, requests).step()

    cost = on_one_chip(model, requests, loads_of(slow.pairs, slow.distinct))

    assert cost.flops.tolist() == [slow.flops]
    assert cost.hbm_bytes.tolist() == [slow.hbm_bytes]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp4"])
def test_bytes_of_other_precisions_equal_a_slow_count_and_flops_stay(precision: str) -> None:
    published, requests = short("deepseek-v3"), BATCHES["decode"]
    model = published.at_precision(precision, kv_bytes_per_element=1)
    slow = Walk(model, requests).step()

    cost = on_one_chip(model, requests, loads_of(slow.pairs, slow.distinct))

    assert cost.hbm_bytes.tolist() == [slow.hbm_bytes]
    assert cost.flops.tolist() == [Walk(published, requests).step().flops]


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_that_needs_every_expert_reads_every_weight_once(name: str) -> None:
    model = MODELS[name]
    tokens = max(1, model.experts)
    all_of_them = loads_of(
        [tokens * model.experts_per_token] * model.moe_layers, [model.experts] * model.moe_layers
    )

    cost = on_one_chip(model, [(1, 0)] * tokens, all_of_them)

    row_bytes = model.hidden * model.weight_bytes_per_param
    own_bytes = tokens * (model.kv_bytes_per_token + row_bytes + 2 * 4 * model.vocab)
    # a table of its own is looked up, not read whole; a tied one is the LM head
    table_bytes = 0 if model.tied_embeddings else model.vocab * row_bytes
    assert cost.hbm_bytes[0] - own_bytes == model.weight_bytes - table_bytes


@pytest.mark.parametrize("name", MODELS)
def test_a_token_takes_two_flops_of_every_active_parameter_that_is_in_a_matrix(name: str) -> None:
    model = MODELS[name]
    cost = on_one_chip(model, [(1, 0)], None)

    # beside the table that is looked up, and norms and biases, which are no products; a token's
    # attention to itself alone adds a little
    active = model.active_parameters - (0 if model.tied_embeddings else model.vocab * model.hidden)
    assert cost.flops[0] == pytest.approx(2 * active, rel=0.005)
