import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.sim.clock import DilatedClock, VirtualClock

MS = 1_000_000


class Wall:
    """A wall clock that only sleeping moves; `late_s` is how much longer each sleep takes."""

    def __init__(self, now_ns: int = 5_000 * MS, late_s: float = 0.0, wakes_early: bool = False):
        self.now_ns = now_ns
        self.late_s = late_s
        self.wakes_early = wakes_early
        self.slept_s: list[float] = []

    def read(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept_s.append(seconds)
        share = 0.5 if self.wakes_early and len(self.slept_s) == 1 else 1.0
        self.now_ns += round((seconds * share + self.late_s) * 1e9)


def clock(wall: Wall, dilation: float) -> DilatedClock:
    return DilatedClock(dilation, wall_ns=wall.read, sleep_s=wall.sleep)


class TestDilatedClock:
    @pytest.mark.parametrize(
        ("dilation", "wall_ms", "emulated_ms"), [(1, 30, 30), (3, 30, 10), (0.5, 30, 60)]
    )
    def test_it_begins_at_zero_and_runs_slower_by_the_dilation(
        self, dilation: float, wall_ms: int, emulated_ms: int
    ) -> None:
        wall = Wall()
        dilated = clock(wall, dilation)
        assert dilated.now_ns() == 0

        wall.now_ns += wall_ms * MS

        assert dilated.now_ns() == emulated_ms * MS
        assert dilated.dilation == dilation

    @pytest.mark.parametrize(("dilation", "slept_s"), [(1, 0.02), (3, 0.06), (0.5, 0.01)])
    def test_it_sleeps_the_dilated_time_that_is_left(self, dilation: float, slept_s: float) -> None:
        wall = Wall()
        dilated = clock(wall, dilation)
        wall.now_ns += round(10 * MS * dilation)

        assert dilated.wait_until_ns(30 * MS) == 0

        assert wall.slept_s == [pytest.approx(slept_s)]
        assert dilated.now_ns() == 30 * MS

    def test_a_sleep_that_ends_early_is_continued(self) -> None:
        wall = Wall(wakes_early=True)

        assert clock(wall, 2).wait_until_ns(10 * MS) == 0

        assert wall.slept_s == [pytest.approx(0.02), pytest.approx(0.01)]

    def test_a_sleep_that_ends_late_is_the_hosts_jitter_and_no_lag(self) -> None:
        wall = Wall(late_s=0.004)

        assert clock(wall, 2).wait_until_ns(10 * MS) == 0

    @pytest.mark.parametrize(("dilation", "lag_ms"), [(1, 30), (3, 0), (2, 10), (4, 0)])
    def test_a_deadline_that_has_passed_is_a_lag_in_emulated_time(
        self, dilation: float, lag_ms: int
    ) -> None:
        wall = Wall()
        dilated = clock(wall, dilation)
        wall.now_ns += 60 * MS

        assert dilated.wait_until_ns(30 * MS if dilation == 1 else 20 * MS) == lag_ms * MS
        assert bool(wall.slept_s) == (dilation == 4)

    def test_a_change_counts_from_the_present_on_for_reading_and_for_waiting(self) -> None:
        wall = Wall()
        dilated = clock(wall, 2)
        wall.now_ns += 40 * MS
        dilated.change(10)
        assert (dilated.now_ns(), dilated.dilation) == (20 * MS, 10.0)
        assert dilated.epochs.last.index == 1

        wall.now_ns += 40 * MS
        assert dilated.now_ns() == 24 * MS
        assert dilated.wait_until_ns(30 * MS) == 0
        assert wall.slept_s == [pytest.approx(0.06)]
        assert dilated.wait_until_ns(10 * MS) == 20 * MS  # of the epoch before: late all the same

    @pytest.mark.parametrize("first", ["reads", "changes"])
    def test_time_never_falls_when_one_thread_reads_while_another_changes_it(
        self, first: str
    ) -> None:
        wall = Wall()
        dilated = clock(wall, 1)
        wall.now_ns += 10 * MS
        seen: list[int] = []

        def reads() -> None:
            seen.append(dilated.now_ns())

        def changes() -> None:
            dilated.change(10)

        second = changes if first == "reads" else reads
        others: list[threading.Thread] = []

        def read_wall() -> int:
            """The wall as it was before the other thread, where that is let in, or after it."""
            read_ns = wall.now_ns
            if not others:
                others.append(threading.Thread(target=second))
                if first == "changes":
                    wall.now_ns += 10 * MS
                others[0].start()
                others[0].join(0.2)  # it waits for this reading, or is through with its own
                if first == "reads":
                    wall.now_ns += 10 * MS
                    read_ns = wall.now_ns
            return read_ns

        dilated._wall_ns = read_wall
        (reads if first == "reads" else changes)()
        others[0].join()

        assert dilated.dilation == 10
        assert seen[0] <= dilated.now_ns()

    @pytest.mark.parametrize("dilation", [0, -1, float("inf"), float("nan")])
    def test_a_dilation_is_a_number_above_zero(self, dilation: float) -> None:
        with pytest.raises(ConfigError, match="dilation="):
            DilatedClock(dilation)

    @given(
        dilation=st.floats(0.01, 1_000),
        deadlines_ns=st.lists(st.integers(0, 10**12), max_size=10),
        pauses_ns=st.lists(st.integers(0, 10**12), max_size=10),
    )
    def test_after_a_wait_the_present_is_the_deadline_and_the_lag(
        self, dilation: float, deadlines_ns: list[int], pauses_ns: list[int]
    ) -> None:
        wall = Wall()
        dilated = clock(wall, dilation)
        before_ns = 0
        for deadline_ns, pause_ns in zip(deadlines_ns, pauses_ns, strict=False):
            wall.now_ns += pause_ns

            lag_ns = dilated.wait_until_ns(deadline_ns)

            # A wall nanosecond is 1 / dilation emulated ones, and each conversion may round.
            allowed_ns = 3 + 3 / dilation + 1e-9 * deadline_ns
            assert lag_ns >= 0
            assert abs(dilated.now_ns() - (deadline_ns + lag_ns)) <= allowed_ns
            assert dilated.now_ns() >= before_ns
            before_ns = dilated.now_ns()


class TestVirtualClock:
    def test_it_jumps_and_never_waits_or_lags(self) -> None:
        virtual = VirtualClock()
        assert virtual.now_ns() == 0

        assert virtual.wait_until_ns(10**15) == 0

        assert virtual.now_ns() == 10**15
        assert virtual.dilation == 0

    @given(st.lists(st.integers(0, 10**15)))
    def test_it_never_goes_back(self, deadlines_ns: list[int]) -> None:
        virtual = VirtualClock()
        for index, deadline_ns in enumerate(deadlines_ns):
            assert virtual.wait_until_ns(deadline_ns) == 0
            assert virtual.now_ns() == max(deadlines_ns[: index + 1])
