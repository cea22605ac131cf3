"""Files and batches as the server keeps and shows them, and a batch's states. Pure.

A batch goes through OpenAI's statuses; its only changes are `after` an event of the table. Times
are Unix time of the wall, as clients read and write them: a batch outlives its server, whose
emulated clock does not.

Sources: https://platform.openai.com/docs/api-reference/batch/object,
https://platform.openai.com/docs/api-reference/files/object
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from emulator.errors import UltraServeError

BATCH_PURPOSE: Final = "batch"
OUTPUT_PURPOSE: Final = "batch_output"

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Paths that a batch's requests may go to, one for all of them."""


class BatchStatus(StrEnum):
    """OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether it changes no more."""
        return self in (
            BatchStatus.FAILED,
            BatchStatus.COMPLETED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        )


class BatchEvent(StrEnum):
    """What changes a batch's status."""

    VALID = "valid"
    INVALID = "invalid"
    ANSWERED = "answered"  # every request
    PUBLISHED = "published"  # its answers are files
    EXPIRED = "expired"  # likewise, with an error for each request that was not answered in time
    CANCEL = "cancel"


_TRANSITIONS: Final[Mapping[tuple[BatchStatus, BatchEvent], BatchStatus]] = {
    (BatchStatus.VALIDATING, BatchEvent.VALID): BatchStatus.IN_PROGRESS,
    (BatchStatus.VALIDATING, BatchEvent.INVALID): BatchStatus.FAILED,
    (BatchStatus.VALIDATING, BatchEvent.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.IN_PROGRESS, BatchEvent.ANSWERED): BatchStatus.FINALIZING,
    (BatchStatus.IN_PROGRESS, BatchEvent.EXPIRED): BatchStatus.EXPIRED,
    (BatchStatus.IN_PROGRESS, BatchEvent.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.CANCELLING, BatchEvent.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.FINALIZING, BatchEvent.PUBLISHED): BatchStatus.COMPLETED,
    (BatchStatus.CANCELLING, BatchEvent.PUBLISHED): BatchStatus.CANCELLED,
}


class IllegalBatchEvent(UltraServeError):
    """An event that a batch of this status cannot have."""

    def __init__(self, status: BatchStatus, event: BatchEvent) -> None:
        super().__init__(f"a batch that is {status} cannot take the event {event}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError:
    """What is wrong with a line of an input file, counted from 1; None: with the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of the key `owner`; `filename` is shown and names nothing on the disk."""

    owner: str
    id: str
    size_bytes: int
    created_at: int
    filename: str
    purpose: str

    def shown(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch of the key `owner`.

    `output_name` and `error_name` are the ids that its files will have: publishing twice, after a
    server's death between, makes the same files. `total`, `completed` and `failed` count requests.
    `is_expiring`: its deadline has come, and requests without an answer get none.
    """

    owner: str
    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_name: str
    error_name: str
    metadata: dict[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    errors: tuple[LineError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    is_expiring: bool = False

    def after(self, event: BatchEvent, *, now_s: float) -> "StoredBatch":
        """The batch after `event`; raises IllegalBatchEvent."""
        status = _TRANSITIONS.get((self.status, event))
        if status is None:
            raise IllegalBatchEvent(self.status, event)
        if status is self.status:
            return self
        since: dict[str, Any] = {f"{status}_at": int(now_s)}
        return replace(self, status=status, **since)

    def allows(self, event: BatchEvent) -> bool:
        """Whether `event` is legal now."""
        return (self.status, event) in _TRANSITIONS

    def shown(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        errors = None
        if self.errors:
            data = [
                {"code": one.code, "line": one.line, "message": one.message, "param": one.param}
                for one in self.errors
            ]
            errors = {"object": "list", "data": data}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": self.cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.metadata,
        }
