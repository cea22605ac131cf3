import pytest

from tests.attacks.other_load import CpuUse, others_share


def test_others_have_what_is_neither_idle_nor_ours() -> None:
    before = CpuUse(machine_s=100.0, ours_s=10.0, idle_s=50.0)
    after = CpuUse(machine_s=110.0, ours_s=13.0, idle_s=52.0)

    assert others_share(before, after) == 0.5
    assert others_share(before, before) == 0.0
    assert others_share(before, CpuUse(machine_s=110.0, ours_s=30.0, idle_s=52.0)) == 0.0


@pytest.mark.process
def test_a_process_that_works_is_ours() -> None:
    before = CpuUse.now(())
    end_s = before.ours_s + 0.1
    while CpuUse.now(()).ours_s < end_s:
        pass
    after = CpuUse.now(())

    assert after.ours_s - before.ours_s >= 0.09  # counted in hundredths
    assert after.machine_s > before.machine_s
