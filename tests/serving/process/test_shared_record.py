"""A record between two processes: whole, newest, and gone with its writer."""

import multiprocessing
import os
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from serving.process.shared_record import BYTES_MAX, SharedRecordReader, SharedRecordWriter


def test_a_reader_sees_nothing_then_the_newest_and_the_same_object_until_it_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own" / "record"
    reader = SharedRecordReader(path)
    assert reader.read() is None
    writer = SharedRecordWriter(path)
    assert reader.read() is None, "there is a file, and no record yet"

    writer.write(b"one")
    writer.write(b"two")
    first = reader.read()
    assert first == b"two"
    assert reader.read() is first
    writer.write(b"a longer one")
    assert reader.read() == b"a longer one"


def _write_on(path: Path, enough: Event) -> None:
    writer = SharedRecordWriter(path)
    for number in count():
        writer.write(str(number % 10).encode() * (1 + 997 * number % 8_000))
        if enough.is_set():
            return


@pytest.mark.long
def test_no_record_is_ever_seen_half_written(tmp_path: Path) -> None:
    path = tmp_path / "own" / "record"
    context = multiprocessing.get_context("spawn")
    enough = context.Event()
    process = context.Process(target=_write_on, args=(path, enough))
    process.start()
    try:
        reader = SharedRecordReader(path)
        seen = set[bytes]()
        while len(seen) < 1_000 and process.is_alive():
            record = reader.read()
            if record is not None:
                seen.add(record)
                assert record == record[:1] * len(record)
    finally:
        enough.set()
        process.join()

    assert process.exitcode == 0
    assert len(seen) == 1_000, "it was read while it was written"


def test_the_file_goes_when_it_is_read_and_when_its_writer_goes(tmp_path: Path) -> None:
    path = tmp_path / "own" / "record"
    writer = SharedRecordWriter(path)
    assert path.stat().st_mode & 0o777 == 0o600
    reader = SharedRecordReader(path)
    reader.read()
    assert not path.exists()
    writer.write(b"still")
    assert reader.read() == b"still"

    unread = SharedRecordWriter(path)
    unread.close()
    unread.close()
    assert not path.exists()


@pytest.mark.process
def test_a_child_that_is_forked_does_not_take_the_file_away(tmp_path: Path) -> None:
    path = tmp_path / "own" / "record"
    writer = SharedRecordWriter(path)
    child = os.fork()
    if not child:
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.exists()


def test_a_record_that_does_not_fit_is_a_defect(tmp_path: Path) -> None:
    writer = SharedRecordWriter(tmp_path / "own" / "record")
    writer.write(bytes(BYTES_MAX - 8))
    with pytest.raises(AssertionError, match="a record of"):
        writer.write(bytes(BYTES_MAX - 7))
