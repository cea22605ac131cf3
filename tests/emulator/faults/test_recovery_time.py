from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.faults.recovery_time import RecoveryRates, recovery_ns, reload_ns
from emulator.faults.survival import SurvivalPlan
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import FaultKind
from emulator.specs.figure import Figure
from tests.emulator.faults.machine import lose, machine

MACHINE = machine(chips=8, experts=8, spares=1)
RATES = RecoveryRates()  # drives of a tray read 28 GB/s, its host link carries 128 GB/s
LOST, HUNG, SLOW = FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.SLOW_CHIP


def figure(value: float) -> Figure:
    return Figure(value=value, unit="as in the field", source="assumed: a test's")


def reading(*gigabytes: float) -> SurvivalPlan:
    """A recovery in which each position reads so much."""
    recovery = MACHINE.after()
    bytes_read = recovery.reload_bytes.copy()
    bytes_read[: len(gigabytes)] = [int(each * 1e9) for each in gigabytes]
    return replace(recovery, reload_bytes=bytes_read)


def reload_s(recovery: SurvivalPlan, rates: RecoveryRates = RATES) -> float:
    return reload_ns(recovery, MACHINE.partition, TRN3_NL72X2, rates) / 1e9


def test_the_chips_of_a_tray_share_its_drives_and_trays_read_side_by_side() -> None:
    assert reload_s(reading(28)) == 1
    assert reload_s(reading(14, 14, 7, 7)) == 1.5
    assert reload_s(reading(14, 14, 0, 0, 28, 14)) == 1.5


def test_the_slower_of_drives_and_host_link_counts() -> None:
    faster = replace(RATES, drives_bytes_per_s=figure(256e9))

    assert reload_s(reading(128), faster) == 1


def test_a_chip_that_stood_by_reads_from_the_drives_of_its_own_tray() -> None:
    recovery = MACHINE.after(lose(0))  # chip 8, of the third tray, takes position 0
    loaded = replace(recovery, reload_bytes=reading(28, 28).reload_bytes)

    assert recovery.restored == ((0, 8),)
    assert reload_s(loaded) == 1


def test_nothing_to_read_takes_no_time() -> None:
    assert reload_s(reading()) == 0


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [([], 0), ([SLOW], 0), ([LOST], 0.001), ([HUNG], 30), ([LOST, HUNG], 30), ([LOST, SLOW], 0.001)]
    + [([kind], 0.001) for kind in (FaultKind.FAIL_STACK, FaultKind.CUT_LINK)]
    + [([FaultKind.PULL_SWITCH_TRAY], 0.001)],
)
def test_the_last_fault_to_be_noticed_counts(kinds: list[FaultKind], seconds: float) -> None:
    assert RATES.detection_ns(kinds) == seconds * 1e9


def test_a_recovery_is_noticing_and_then_reading() -> None:
    time_ns = recovery_ns(reading(28), [HUNG], MACHINE.partition, TRN3_NL72X2, RATES)

    assert time_ns == 31_000_000_000


def test_what_cannot_be_survived_is_over_when_it_is_noticed() -> None:
    beyond = replace(reading(28), survivable=False)

    assert recovery_ns(beyond, [LOST], MACHINE.partition, TRN3_NL72X2, RATES) == 1_000_000


def test_the_runtimes_timeout_can_be_set_and_is_above_zero() -> None:
    patient = RecoveryRates(hang_ns=figure(5e9))

    assert patient.detection_ns([HUNG]) == 5_000_000_000
    with pytest.raises(ConfigError, match="hang_ns=0: expected > 0"):
        RecoveryRates(hang_ns=figure(0))


def test_every_figure_that_nobody_published_says_so() -> None:
    assert not RATES.hang_ns.assumed
    assert RATES.notice_ns.assumed
    assert RATES.drives_bytes_per_s.assumed
    assert RATES.host_link_bytes_per_s.assumed
