import dataclasses

import pytest

from tests.serving.telemetry.snapshots import snapshot


def test_a_snapshot_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot().steps = 9  # type: ignore[misc]
