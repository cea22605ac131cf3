"""A batch's statuses: whatever happens, it ends once and stays as it is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.batch.batch_record import (
    BatchEvent,
    BatchStatus,
    IllegalBatchEvent,
    StoredBatch,
)


def a_batch() -> StoredBatch:
    return StoredBatch(
        owner="a key",
        id="batch_1",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=100,
        expires_at=200,
        output_name="file-2",
        error_name="file-3",
    )


def test_a_batch_that_is_answered() -> None:
    batch = a_batch()
    for now_s, event in enumerate(
        (BatchEvent.VALID, BatchEvent.ANSWERED, BatchEvent.PUBLISHED), start=110
    ):
        batch = batch.after(event, now_s=now_s + 0.5)
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.in_progress_at, batch.finalizing_at, batch.completed_at) == (110, 111, 112)


@given(st.lists(st.sampled_from(BatchEvent), max_size=12))
def test_a_batch_ends_once_and_each_status_has_its_time(events: list[BatchEvent]) -> None:
    batch, seen = a_batch(), [BatchStatus.VALIDATING]
    for now_s, event in enumerate(events, start=110):
        if not batch.allows(event):
            with pytest.raises(IllegalBatchEvent, match=f"is {batch.status} cannot"):
                batch.after(event, now_s=now_s)
            continue
        assert not batch.status.is_over
        batch = batch.after(event, now_s=now_s)
        if batch.status is not seen[-1]:
            seen.append(batch.status)
            assert batch.shown()[f"{batch.status}_at"] == now_s
    assert len(set(seen)) == len(seen)
    shown = batch.shown()
    for status in BatchStatus:
        if status is not BatchStatus.VALIDATING:
            assert (shown[f"{status}_at"] is not None) == (status in seen)


def test_every_status_leads_to_an_end() -> None:
    def reached(batch: StoredBatch) -> set[BatchStatus]:
        after = [batch.after(event, now_s=1.0) for event in BatchEvent if batch.allows(event)]
        steps = [each for each in after if each.status is not batch.status]
        return {batch.status}.union(*map(reached, steps))

    assert reached(a_batch()) == {*BatchStatus}
    left = {BatchStatus.VALIDATING: 3, BatchStatus.IN_PROGRESS: 3, BatchStatus.CANCELLING: 2}
    for status in BatchStatus:
        allowed = [e for e in BatchEvent if replace(a_batch(), status=status).allows(e)]
        assert len(allowed) == (0 if status.is_over else left.get(status, 1))
