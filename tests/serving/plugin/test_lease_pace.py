"""What chips that are out let the clock do."""

import pytest

from tests.serving.plugin.leased_requests import drain, lease_of, resume
from tests.serving.plugin.running_engine import Running

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("purpose", "stays"), [("training", True), ("maintenance", False)])
def test_the_clock_stays_while_a_job_trains_and_follows_the_load_beside_maintenance(
    purpose: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running()
    kept: list[bool] = []
    monkeypatch.setattr(running.engine._time, "keep_pace", kept.append)
    drain(running, 3, grace_s=0.0, purpose=purpose)
    running.step(0)
    running.step(0)
    assert lease_of(running, 1).phase == purpose
    assert kept[-1] is stays

    resume(running, 1)
    for _ in range(5):
        running.step(0)
    assert lease_of(running, 1).phase == "serving"
    running.step(0)
    assert kept[-1] is False
