import dataclasses

import msgspec
import pytest

from serving.metrics.snapshot import Snapshot
from tests.serving.metrics.snapshots import snapshot


def test_a_snapshot_survives_vllm_s_own_messages() -> None:
    sent = msgspec.msgpack.encode(snapshot().to_payload())

    assert Snapshot.from_payload(msgspec.msgpack.decode(sent)) == snapshot()


def test_a_payload_with_a_field_too_many_or_too_few_is_refused() -> None:
    payload = snapshot().to_payload()
    with pytest.raises(TypeError):
        Snapshot.from_payload(payload | {"more": 1})
    del payload["steps"]
    with pytest.raises(TypeError):
        Snapshot.from_payload(payload)


def test_a_snapshot_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot().steps = 9  # type: ignore[misc]
