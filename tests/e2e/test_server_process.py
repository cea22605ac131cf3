"""What the tests of a whole server take for left over, on processes that are no server."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess, free_port


@pytest.fixture
def segment() -> Iterator[Path]:
    """The name of shared memory that nobody else uses; gone afterwards."""
    path = Path("/dev/shm", f"test-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def child(script: str) -> ServerProcess:
    return ServerProcess(sys.executable, "-c", script, port=free_port())


def test_shared_memory_that_a_child_leaves_is_left_over(segment: Path) -> None:
    with child(f"open({str(segment)!r}, 'w').write('held')") as server:
        assert server.wait_end() == 0

        assert server.left_over(timeout_s=0.0) == [str(segment)]


def test_a_child_that_clears_up_leaves_nothing(segment: Path) -> None:
    script = f"import os; open({str(segment)!r}, 'w'); os.remove({str(segment)!r})"
    with child(script) as server:
        assert server.wait_end() == 0

        assert server.left_over(timeout_s=0.0) == []


def test_shared_memory_that_was_there_or_that_another_has_open_is_not_the_child_s(
    segment: Path,
) -> None:
    older = segment.with_suffix(".older")
    older.touch()
    try:
        with child("pass") as server, segment.open("w"):
            assert server.wait_end() == 0

            assert server.left_over(timeout_s=0.0) == []
    finally:
        older.unlink()


def test_a_process_that_goes_on_is_left_over() -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=False)"
    with child(script) as server:
        assert server.wait_end() == 0

        assert server.left_over(timeout_s=0.0) == ["sleep sleep 60"]
    assert server.left_over(timeout_s=10.0) == []
