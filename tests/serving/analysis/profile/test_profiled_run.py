"""What a run is put together from: a machine's state, its faults, its steps."""

import dataclasses

import msgspec
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.analysis.profile.profiled_run import Moment, chips_of, moments_of
from tests.serving.analysis.profile.profiled_runs import a_run
from tests.serving.telemetry.machine_states import a_state
from tests.serving.telemetry.step_records import MS, a_step


def test_a_chip_s_hbm_is_told_by_owner_over_its_stacks() -> None:
    first, _, spare = chips_of(a_state(), idle_watts=150.0)

    assert (first.chip, first.rack, first.tray, first.position, first.rank) == (0, 0, 0, 0, 0)
    assert first.hbm_capacity_bytes == 4 * 36 * 10**9
    # Four stacks with a GB of KV and half a GB of experts each.
    assert first.owner_bytes == {"kv": 4 * 10**9, "weights": 2 * 10**9}
    assert (spare.rank, spare.owner_bytes, spare.idle_watts) == (None, {}, 150.0)


def test_weights_of_all_tensor_groups_are_one_owner() -> None:
    state = a_state()
    chip = state.chips[0]
    held = {"weights/experts": 3, "weights/attention": 4, "kv/window": 1, "kv": 2}
    stack = dataclasses.replace(chip.stacks[0], owner_bytes=held)
    state = msgspec.structs.replace(
        state, chips=(msgspec.structs.replace(chip, stacks=(stack, stack)),)
    )

    assert chips_of(state, 0.0)[0].owner_bytes == {"weights": 14, "kv/window": 2, "kv": 4}


def test_faults_and_repairs_of_the_window_are_moments_of_it() -> None:
    (record,) = a_state().faults  # at 3.25 s
    hung = msgspec.structs.replace(
        record,
        fault=Fault(kind=FaultKind.HANG_CHIP, chip=5),
        injected_emulated_s=1.0,
        healed_emulated_s=4.5,
    )

    assert moments_of((record, hung), 10**9, 4 * 10**9) == (
        Moment(name="hang-chip chip 5", at_ns=10**9, detail=record.reason),
        Moment(name="pull-switch-tray rack 0", at_ns=3_250_000_000, detail=record.reason),
    )
    (healed,) = moments_of((hung,), 4 * 10**9, 5 * 10**9)
    assert (healed.name, healed.at_ns) == ("healed: hang-chip chip 5", 4_500_000_000)


def test_steps_that_overlap_are_no_run() -> None:
    with pytest.raises(ValueError, match="step 1 begins before step 0 has ended"):
        a_run(steps=(a_step(0), a_step(1, begin_ns=5 * MS)))
    with pytest.raises(ValueError, match="before it begins"):
        a_run(begin_ns=10, end_ns=5)
