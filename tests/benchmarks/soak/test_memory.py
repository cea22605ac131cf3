import pytest

from tests.benchmarks.soak.memory import Held, MemoryWatch, Reading, changes
from tests.e2e.server_process import ServerProcess, free_port

MB = 1e6


def reading(chips: int, chip_mb: float = 100.0, largest_mb: float | None = None) -> Reading:
    """Of a machine with so many chips, all alike but for the largest."""
    total_mb = chips * chip_mb + ((largest_mb or chip_mb) - chip_mb)
    held = Held(
        processes=chips, total_bytes=total_mb * MB, largest_bytes=(largest_mb or chip_mb) * MB
    )
    return 0.0, {"chip": held}


EARLY = [reading(20), reading(19), reading(20)]
"""One of them while a chip was lost."""


def test_a_machine_that_is_what_it_was_has_not_grown() -> None:
    assert changes(EARLY, [reading(20), reading(20, chip_mb=104.0)], 0.05) == []


@pytest.mark.parametrize(
    "late",
    [
        reading(21, chip_mb=95.2),  # the sum is the same: a process was left behind
        reading(19, chip_mb=105.2),
        reading(20, chip_mb=106.0),
        reading(20, chip_mb=94.0),
        reading(20, largest_mb=110.0),  # the mean grows by 0.5 %
    ],
)
def test_a_process_more_and_a_leak_in_one_are_told(late: Reading) -> None:
    assert changes(EARLY, [late], 0.05) != []


def test_a_role_that_was_not_there_and_one_that_is_gone_are_told() -> None:
    assert changes([], EARLY, 0.05) != []
    assert changes(EARLY, [], 0.05) != []


@pytest.mark.process
def test_processes_are_read_with_all_that_they_started() -> None:
    script = "sh -c 'sleep 60; true' ChipWorker; true"
    with ServerProcess("sh", "-c", script, port=free_port()) as server:
        watch = MemoryWatch(server)
        server.wait_until(lambda: server.runs_now("sleep sleep 60"), "chip")
        watch.read(1.0)
    ((_, held),) = watch.readings
    assert {role: each.processes for role, each in held.items()} == {"api": 1, "chip": 1, "ray": 1}
    assert all(each.total_bytes == each.largest_bytes > 0 for each in held.values())
