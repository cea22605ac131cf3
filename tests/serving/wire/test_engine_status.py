"""An engine's status, from one process to the other."""

from pathlib import Path

from emulator.sim.epochs import EPOCHS_KEPT, EpochMap
from serving.wire.engine_status import EngineStatus, StatusReader, StatusWriter, status_path
from tests.serving.telemetry.telemetry_snapshots import a_telemetry
from tests.serving.wire.engine_statuses import epoch, status


def test_a_status_arrives_to_the_bit_and_as_often_as_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "own" / "engine.status"
    reader, writer = StatusReader(path), StatusWriter(path)
    assert reader.read() is None
    written = status(dilation=1 / 3, emulated_s=0.1 + 0.2, ranks_up=7)
    writer.write(written)
    arrived = reader.read()

    assert arrived == written
    assert arrived is not None
    assert arrived.dilation == 1 / 3
    assert reader.read() is arrived


def test_as_many_epochs_as_a_clock_keeps_fit(tmp_path: Path) -> None:
    path = tmp_path / "own" / "engine.status"
    late = 2.0**31
    epochs = tuple(
        epoch(1 / 3, index=10**9 + number, emulated_s=late, unix_s=late)
        for number in range(EPOCHS_KEPT)
    )
    written = EngineStatus(emulated_s=late, ranks_up=144, epochs=epochs)
    writer = StatusWriter(path)
    writer.write(written)
    arrived = StatusReader(path).read()

    assert arrived == written
    assert arrived is not None
    assert arrived.epoch_map == EpochMap(epochs)
    writer.close()


def test_totals_stay_until_others_are_written_and_fit_beside_all_epochs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own" / "engine.status"
    epochs = tuple(epoch(1 / 3, index=number) for number in range(EPOCHS_KEPT))
    written = EngineStatus(emulated_s=1.0, ranks_up=144, epochs=epochs)
    writer, reader = StatusWriter(path), StatusReader(path)
    writer.write(written)
    reader.read()
    assert reader.totals is None

    first = a_telemetry(chip_joules=1 / 3)
    writer.write(written, first)
    writer.write(EngineStatus(emulated_s=2.0, ranks_up=144, epochs=epochs))
    reader.read()
    assert reader.totals == first
    writer.close()
    assert not path.parent.exists()


def test_virtual_time_has_no_epochs() -> None:
    virtual = EngineStatus(emulated_s=1.0, ranks_up=1, epochs=())
    assert (virtual.dilation, virtual.epoch_map) == (0.0, None)


def test_engines_of_one_user_have_a_record_each() -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/1"}
    paths = {status_path(name, environment) for name in ("1", "2")}
    assert len(paths) == 2
    assert all(path.parent == Path("/run/user/1/ultraserve") for path in paths)
