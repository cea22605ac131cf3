"""A batch that is not over: its requests that wait, those under way, and what is done with it."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, replace

from serving.server.batch.answer_journal import AnswerJournal
from serving.server.batch.batch_record import BatchStatus, StoredBatch
from serving.server.batch.input_file import InputFile
from serving.server.gateway.http.inner_request import InnerRequest


@dataclass(slots=True)
class SentRequest:
    """A request under way; `inner` once it was sent."""

    task: asyncio.Task[None]
    inner: InnerRequest | None = None
    is_withdrawn: bool = False

    @property
    def waits(self) -> bool:
        """Whether the engine has nothing of it yet."""
        return self.inner is None or self.inner.waits


class LiveBatch:
    """State of one batch; every request is pending, under way, or in the journal."""

    def __init__(self, record: StoredBatch) -> None:
        self.record = record
        self.input: InputFile | None = None
        self.journal: AnswerJournal | None = None
        self.pending: deque[int] = deque()
        self.under_way: dict[int, SentRequest] = {}
        self.failures: Counter[int] = Counter()
        self.again_s = 0.0  # nothing is sent before, Unix time
        self.work: asyncio.Task[None] | None = None  # reads its input, or publishes its answers
        self.work_again_s = 0.0
        self.is_unreadable = False  # its input, when it was last tried
        self.is_ending = False  # its answers are being published
        self.got_on_s = 0.0  # when it was opened, might run or had an answer, Unix time

    def open(self, requests: InputFile, journal: AnswerJournal) -> None:
        """Begin, or go on after a restart, with what the journal lacks."""
        self.input, self.journal = requests, journal
        self.pending = deque(each for each in range(len(requests)) if not journal.has(each))
        self.check()

    @property
    def is_open(self) -> bool:
        """Whether its requests may be sent."""
        is_running = self.record.status is BatchStatus.IN_PROGRESS and self.work is None
        return is_running and self.input is not None

    @property
    def has_begun(self) -> bool:
        """Whether its file was found right, by this server or an earlier one."""
        return self.record.in_progress_at is not None

    @property
    def left(self) -> int:
        """Requests that are not answered; all of an unread file count as none."""
        return len(self.pending) + len(self.under_way)

    @property
    def window_s(self) -> float:
        """Wall seconds from its creation to its deadline."""
        return float(self.record.expires_at - self.record.created_at)

    def counted(self) -> StoredBatch:
        """Its record with the present counts."""
        if self.journal is None or self.input is None:
            return self.record
        return replace(
            self.record,
            total=len(self.input),
            completed=len(self.journal.completed),
            failed=len(self.journal.failed),
        )

    def withdraw(self, *, waiting_only: bool) -> None:
        """Take requests back: those without a turn, or all."""
        for sent in self.under_way.values():
            if (sent.waits or not waiting_only) and not sent.is_withdrawn:
                sent.is_withdrawn = True
                sent.task.cancel()

    def check(self) -> None:
        """Assert that every request is in one place."""
        if self.input is None or self.journal is None:
            return
        answered = len(self.journal.completed) + len(self.journal.failed)
        assert self.left + answered == len(self.input), (self.left, answered)

    async def close(self) -> None:
        """End its tasks and close its files; idempotent."""
        self.withdraw(waiting_only=False)
        tasks = [sent.task for sent in self.under_way.values()]
        if self.work is not None:
            tasks.append(self.work)  # a thread of it ends by itself
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close_files()

    def close_files(self) -> None:
        """Close its input and journal; idempotent."""
        for file in (self.input, self.journal):
            if file is not None:
                file.close()
