"""A step whose chips would draw more than they may takes longer, and draws what they may."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.power.system_power import SystemPower
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from emulator.ultraserver.step_parts import THROTTLE
from emulator.ultraserver.what_if import POWER, what_if_ns
from tests.emulator.ultraserver.tiny_steps import same_on_each

TRN3 = SYSTEMS["trn3-nl72x2"]
DENSE = MODELS["llama-3.1-8b"].at_precision("fp8")
PROMPTS = same_on_each(1, requests=4, new=2_048, context=0)


def budgeted(budget_watts: float) -> StepCostModel:
    """A chip with that budget, in a rack that has power to spare."""
    budget = replace(TRN3.chip.budget_watts, value=budget_watts, source="made up")
    roomy = replace(TRN3.provisioned_watts, value=1e6, source="made up")
    system = replace(
        TRN3, chip=replace(TRN3.chip, budget_watts=budget), provisioned_watts=roomy, power=None
    )
    return StepCostModel(system, DENSE, Partition(chips=1, ep=1), calibration=ROOFLINE)


def cost_with(budget_watts: float) -> StepCost:
    return budgeted(budget_watts).cost(PROMPTS)


def test_half_the_watts_above_idle_make_a_step_twice_as_long() -> None:
    free = cost_with(1_000)
    idle = TRN3.chip.idle_watts.value
    assert free.parts_ns[THROTTLE] == 0.0
    wanted = float(free.chip_watts[0])

    held = cost_with(idle + (wanted - idle) / 2)
    assert held.duration_ns == pytest.approx(2 * free.duration_ns, rel=1e-6)
    assert held.chip_watts[0] == pytest.approx(idle + (wanted - idle) / 2)
    assert held.parts_ns[THROTTLE] == pytest.approx(free.duration_ns, rel=1e-6)
    assert sum(held.parts_ns.values()) == pytest.approx(held.duration_ns, abs=1)


def test_the_same_work_above_idle_costs_the_same_joules_however_long_it_takes() -> None:
    idle = TRN3.chip.idle_watts.value
    above = [
        cost.chip_joules - idle * cost.duration_ns / 1e9 for cost in map(cost_with, (1_000, 400))
    ]
    assert above[0] == pytest.approx(above[1], rel=1e-6)


def test_a_rack_that_cannot_feed_all_its_chips_holds_them_back() -> None:
    low = replace(TRN3.provisioned_watts, value=120_000.0, source="made up")
    small = replace(TRN3.chip.budget_watts, value=600.0, source="made up")
    system = replace(TRN3, chip=replace(TRN3.chip, budget_watts=small), provisioned_watts=low)
    cap_watts = SystemPower(system).chip_cap_watts
    assert cap_watts < 600.0

    cost = StepCostModel(system, DENSE, Partition(chips=1, ep=1), calibration=ROOFLINE).cost(
        PROMPTS
    )
    assert cost.parts_ns[THROTTLE] > 0.0
    np.testing.assert_allclose(cost.chip_watts, cap_watts)


def test_a_larger_power_budget_shortens_a_step_that_power_holds_back() -> None:
    model = budgeted(400)
    costing = StepCosting(model=model, slow_factor=np.ones(1))
    shortened_ns = what_if_ns(costing, PROMPTS, factor=1.5)

    cost = model.cost(PROMPTS)
    assert shortened_ns[POWER] == pytest.approx(cost.duration_ns / 1.5, abs=2)
    assert shortened_ns["tensor"] == pytest.approx(cost.duration_ns, abs=2)  # the joules stay
    assert POWER not in what_if_ns(
        StepCosting(model=budgeted(1_000), slow_factor=np.ones(1)), PROMPTS, factor=1.5
    )
