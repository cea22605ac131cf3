import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.metrics.stats import SchedulerStats

from serving.wire.snapshot import Snapshot
from tests.serving.telemetry.snapshots import snapshot


def test_a_snapshot_survives_vllm_s_own_messages() -> None:
    sent = msgspec.msgpack.encode(snapshot().to_payload())

    assert Snapshot.from_payload(msgspec.msgpack.decode(sent)) == snapshot()


@given(
    st.fixed_dictionaries(
        {
            field.name: st.integers(0, 2**63 - 1)
            if field.type is int
            else st.floats(allow_nan=False)
            for field in dataclasses.fields(Snapshot)
        }
    )
)
def test_every_number_that_a_long_run_can_count_arrives_to_the_bit(values: dict[str, Any]) -> None:
    given = Snapshot(**values)
    stats = SchedulerStats(running_lora_adapters=given.to_payload())
    got = msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=SchedulerStats)

    assert Snapshot.from_payload(got.running_lora_adapters) == given


def test_a_day_of_a_full_ultraserver_fits_into_vllm_s_messages() -> None:
    day = snapshot(chip_joules=144 * 1_000.0 * 86_400, expert_moved_bytes=10**18)

    assert (
        Snapshot.from_payload(msgspec.msgpack.decode(msgspec.msgpack.encode(day.to_payload())))
        == day
    )


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
