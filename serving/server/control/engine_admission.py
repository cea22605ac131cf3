"""The door of the requests, as far as the control service has to do with it."""

from typing import Protocol

from serving.policy.admission.admission_counts import AdmissionCounts
from serving.policy.admission.refusal import RefusalReason, Refused


class EngineDoor(Protocol):
    """What lets requests in; see `serving.server.gateway.admission_controller`."""

    @property
    def closed(self) -> Refused | None:
        """What a request is told that comes now; None while it is open."""

    def close(self, reason: RefusalReason, message: str, retry_after_s: float) -> None:
        """Refuse what comes from now on."""

    def open(self) -> None:
        """Let requests in again."""

    def state(self) -> AdmissionCounts:
        """Who is inside, who waits, and what was refused."""
