import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.peak_expert_load import PeakExpertLoad
from emulator.ultraserver.step_cost import StepCostModel

BOX = system_by_name("dgx-h200")
LNC = BOX.chip.default_lnc.count
MODEL = model_by_name("deepseek-r1")


def batch_of(ranks: int, each: int) -> StepBatch:
    return StepBatch(
        ranks=ranks,
        rank=np.repeat(np.arange(ranks, dtype=np.int64), each),
        new_tokens=np.ones(ranks * each, dtype=np.int64),
        context_tokens=np.full(ranks * each, 100, dtype=np.int64),
        logit_rows=np.full(ranks, each, dtype=np.int64),
    )


def test_whoever_waits_for_the_busiest_chip_waits_longer_than_for_the_mean() -> None:
    costs = StepCostModel(BOX, MODEL, Partition(chips=8, tp=1, ep=8, lnc=LNC), calibration=ROOFLINE)
    batch = batch_of(8, 2)

    mean = costs.cost(batch)
    busiest = costs.cost(batch, PeakExpertLoad(costs).loads(batch))

    assert busiest.parts_ns["experts"] > 1.05 * mean.parts_ns["experts"]
    assert busiest.parts_ns["attention"] == mean.parts_ns["attention"]


def test_tokens_are_sent_as_is_expected() -> None:
    costs = StepCostModel(BOX, MODEL, Partition(chips=8, tp=1, ep=8, lnc=LNC), calibration=ROOFLINE)
    batch = batch_of(8, 4)

    mean = costs.cost(batch)
    busiest = costs.cost(batch, PeakExpertLoad(costs).loads(batch))

    assert busiest.parts_ns["dispatch_combine"] == pytest.approx(mean.parts_ns["dispatch_combine"])


def test_chips_that_divide_every_expert_all_have_the_mean() -> None:
    costs = StepCostModel(
        BOX, MODEL, Partition(chips=8, tp=8, ep=1, expert_tp=8, lnc=LNC), calibration=ROOFLINE
    )
    loads = PeakExpertLoad(costs).loads(batch_of(1, 32))

    assert set(np.asarray(loads.pairs).ravel().tolist()) == {32 * 8.0}
    assert not np.asarray(loads.sent).any()


@pytest.mark.long
def test_maxima_are_for_even_routing_and_models_with_experts() -> None:
    skewed = ExpertDistribution.zipf(MODEL, exponent=1.0, seed=0)
    partition = Partition(chips=8, tp=1, ep=8, lnc=LNC)
    dense = model_by_name("llama-3.1-8b")

    with pytest.raises(ConfigError, match="routing"):
        PeakExpertLoad(
            StepCostModel(BOX, MODEL, partition, distribution=skewed, calibration=ROOFLINE)
        )
    with pytest.raises(ConfigError, match="routed experts"):
        PeakExpertLoad(
            StepCostModel(BOX, dense, Partition(chips=8, tp=8, ep=1, lnc=LNC), calibration=ROOFLINE)
        )
