"""Live chips that train: Ray actors learn the bits that chips in one process learn."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from ray._private.state import actors

from emulator.compute.adamw import AdamWSettings
from emulator.compute.mixed_precision import Precision
from emulator.errors import CheckpointError, ChipLost
from emulator.training_fleet import TrainingFleet
from tests.emulator.chip.in_process_training import started
from tests.emulator.chip.test_training_chip import STEP, dealt, sequences
from tests.emulator.fleet_steps import descendants, is_running

pytestmark = pytest.mark.fleet

CHIPS = 2


@pytest.fixture(scope="module")
def checkpoint(small_checkpoints: Mapping[str, Path]) -> Path:
    return small_checkpoints["one_kv_head"]


@pytest.fixture(scope="module")
def fleet(checkpoint: Path) -> Iterator[TrainingFleet]:
    before = descendants()
    scratch = Path(tempfile.mkdtemp(prefix="fleet-"))  # short: Unix sockets lie in it
    fleet = TrainingFleet(
        weights_dir=checkpoint,
        chips=CHIPS,
        precision=Precision.BF16,
        optimizer=AdamWSettings(weight_decay=0.0),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
        psutil.wait_procs(descendants() - before, timeout=30)
        shutil.rmtree(scratch)
        assert not [each for each in descendants() - before if is_running(each)]


def test_actors_learn_the_bits_that_chips_in_one_process_learn(
    fleet: TrainingFleet, checkpoint: Path
) -> None:
    here = started(checkpoint, chips=CHIPS, precision=Precision.BF16)
    micros = [dealt(sequences(4), CHIPS), dealt(sequences(4, seed=1), CHIPS)]

    for _ in range(3):
        found, expected = fleet.step(micros, STEP), here.step(micros, STEP)
        assert found == expected
    assert fleet.evaluate(micros) == here.evaluate(micros)
    found, expected = fleet.state(), here.state()
    assert found.values.keys() == expected.values.keys()
    for name, values in expected.values.items():
        assert found.values[name].tobytes() == values.tobytes(), name
    assert found.weights.keys() == expected.weights.keys()


def test_a_chip_whose_process_is_killed_is_lost_at_the_next_step(fleet: TrainingFleet) -> None:
    process = psutil.Process(actors(fleet._processes._process_of[1].actor._actor_id.hex())["Pid"])
    process.kill()

    with pytest.raises(ChipLost) as lost:
        fleet.step([dealt(sequences(4), CHIPS)], STEP)

    assert lost.value.chips == (1,)


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    before = descendants()

    with pytest.raises(CheckpointError, match=r"no config\.json"):
        TrainingFleet(
            weights_dir=tmp_path, chips=2, precision=Precision.BF16, optimizer=AdamWSettings()
        )

    assert descendants() <= before  # one of before may have ended meanwhile
