"""Counts of a server's answers, and whether each server error gives a reason.

A reason is, over HTTP, a body in OpenAI's error shape (a line of text for probes); over gRPC, a
status with details.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

GRPC_SERVER_ERRORS: Final = frozenset({2, 13, 14, 15})
"""UNKNOWN, INTERNAL, UNAVAILABLE and DATA_LOSS: HTTP's 5xx."""

UNREASONED_KEPT: Final = 5
"""Examples shown; all are counted."""


def http_reason(body: bytes, *, is_probe: bool = False) -> str:
    """The reason in a body; empty without one."""
    if is_probe and body.strip():
        return body.decode(errors="replace").strip()
    try:
        error: Any = json.loads(body)["error"]
        message, kind = error["message"], error["type"]
    except (ValueError, KeyError, TypeError):
        return ""
    return message if isinstance(message, str) and isinstance(kind, str) and kind else ""


@dataclass(slots=True)
class Answers:
    """Counts by status, server errors without a reason, and other faults.

    Attributes:
        by_status: "401", "grpc 16", "closed" (the server closed the connection, without an answer).
        unreasoned: server errors without a reason.
        faults: violations, such as a smuggled request that was answered.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    unreasoned: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def http(self, status: int, body: bytes, *, is_probe: bool = False) -> None:
        self.by_status[str(status)] += 1
        if status >= 500 and not http_reason(body, is_probe=is_probe):
            self._unreasoned(f"{status} {body[:80]!r}")

    def grpc(self, status: int, details: str) -> None:
        self.by_status[f"grpc {status}"] += 1
        if status in GRPC_SERVER_ERRORS and not details.strip():
            self._unreasoned(f"grpc status {status} without details")

    def closed(self) -> None:
        self.by_status["closed"] += 1

    def fault(self, what: str) -> None:
        if len(self.faults) < UNREASONED_KEPT:
            self.faults.append(what)

    def _unreasoned(self, what: str) -> None:
        if len(self.unreasoned) < UNREASONED_KEPT:
            self.unreasoned.append(what)

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"by_status": dict(self.by_status)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Answers":
        return cls(
            by_status=Counter(plain["by_status"]),
            unreasoned=list(plain["unreasoned"]),
            faults=list(plain["faults"]),
        )
