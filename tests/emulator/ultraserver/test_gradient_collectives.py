import numpy as np
import pytest

from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.shipped_fits import calibration_for
from emulator.ultraserver.gradient_collectives import GradientCollectives
from tests.emulator.specs.tiny_model import TINY

DENSE_BYTES = 2 * TINY.replica_parameters()


def collectives(chips: int, group: int, **calibration: object) -> GradientCollectives:
    return GradientCollectives(
        TRN3_NL72X2,
        TINY,
        np.arange(chips),
        group=group,
        own_experts=np.full(chips, 8 // group),
        calibration=calibration.get("calibration", ROOFLINE),
    )


def test_gradients_are_reduced_layer_by_layer_in_fp32_and_weights_gathered_in_bf16() -> None:
    talk = collectives(4, 4)
    bucket = np.array([2 * DENSE_BYTES / TINY.layers])
    alone = CollectiveModel(TRN3_NL72X2, np.arange(4)[None]).time(Operation.REDUCE_SCATTER, bucket)

    reduced, gathered = talk.reduce_dense(), talk.gather_dense()

    assert reduced.duration_ns == pytest.approx(TINY.layers * float(alone.duration_ns[0]))
    assert reduced.work.link_bytes == pytest.approx(3 / 4 * 2 * DENSE_BYTES)
    assert gathered.work.link_bytes == pytest.approx(3 / 4 * DENSE_BYTES)
    assert reduced.work.hbm_bytes == pytest.approx(2 * reduced.work.link_bytes)
    assert not reduced.work.flops.any()


def test_experts_are_reduced_among_the_chips_with_the_same_copy_by_hand() -> None:
    talk = collectives(8, 2).reduce_experts()  # 4 copies of groups of 2, 4 experts each

    assert talk.work.link_bytes == pytest.approx(3 / 4 * 4 * 4 * TINY.expert_parameters)
    assert collectives(8, 8).reduce_experts().duration_ns == 0


def test_chips_with_more_experts_reduce_more_with_those_in_their_place_of_other_groups() -> None:
    uneven = GradientCollectives(
        TRN3_NL72X2,
        TINY,
        np.arange(8),
        group=2,
        own_experts=np.tile([3, 1], 4),
        calibration=ROOFLINE,
    )
    places = np.array([[0, 2, 4, 6], [1, 3, 5, 7]])
    sizes = 4 * TINY.expert_parameters * np.array([3.0, 1.0])
    alone = CollectiveModel(TRN3_NL72X2, places).time(Operation.REDUCE_SCATTER, sizes / TINY.layers)

    talk = uneven.reduce_experts()

    assert talk.work.link_bytes == pytest.approx(np.tile(3 / 4 * sizes, 4))
    assert talk.duration_ns == pytest.approx(TINY.layers * float(alone.duration_ns.max()))


def test_one_chip_has_nobody_to_talk_to() -> None:
    alone = collectives(1, 1)

    for talk in (alone.reduce_dense(), alone.gather_dense(), alone.reduce_experts()):
        assert talk.duration_ns == 0
        assert not talk.work.link_bytes.any()


def test_a_calibration_starts_each_layers_collective_once_for_every_doubling_of_chips() -> None:
    fitted = calibration_for("trainium3")
    ideal, real = (
        collectives(8, 8, calibration=calibration).gather_dense()
        for calibration in (ROOFLINE, fitted)
    )
    links_ns = float(ideal.work.link_ns[0])
    slower_ns = links_ns / fitted.link_share.value - links_ns
    started_ns = TINY.layers * 3 * fitted.collective_ns.value

    assert real.duration_ns == pytest.approx(ideal.duration_ns + slower_ns + started_ns)
    both = ideal + real
    assert both.duration_ns == ideal.duration_ns + real.duration_ns
