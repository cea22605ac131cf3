import numpy as np
import pytest
from vllm.distributed.eplb.policy.default import DefaultEplbPolicy

from emulator.specs.placement import ExpertPlacement
from serving.policy.placement.balance import rebalance
from tests.serving.policy.placement.cases import Machine, imbalance, machine, zipf_load


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.2])
@pytest.mark.parametrize(
    ("place", "slots", "expert_groups"),
    [
        (machine(racks=2, trays=18, chips=4), 2, 1),
        (machine(racks=1, trays=9, chips=4), 8, 1),
        (machine(racks=2, trays=2, chips=4), 18, 8),
        (machine(racks=2, trays=18, chips=4), 3, 8),
    ],
)
def test_balance_is_within_a_twentieth_of_vllms_own_policy(
    place: Machine, slots: int, expert_groups: int, exponent: float
) -> None:
    """Theirs has no trays and may put an expert on one chip twice, so it is a little freer."""
    load = zipf_load(layers=10, experts=256, exponent=exponent, seed=1)
    nodes = 2 if expert_groups > 1 else 1
    theirs = DefaultEplbPolicy.rebalance_experts_hierarchical(
        load.astype(np.float64), place.chips * slots, expert_groups, nodes, place.chips
    )
    vllms = ExpertPlacement(
        experts=256, ep=place.chips, expert_of_slot=theirs.reshape(10, place.chips, slots)
    )

    ours = rebalance(load, slots=slots, ep=place.chips, expert_groups=expert_groups, **place.places)

    assert (imbalance(load, ours) <= 1.05 * imbalance(load, vllms)).all()
