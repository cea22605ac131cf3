"""The clients' books of a soak against the server's, request by request in sum."""

from collections import Counter
from dataclasses import dataclass, field

from serving.endpoints.door_report import DoorReport
from tests.benchmarks.soak.asks import Ask, End, Ending

_LEFT = ("finished", "aborted", "failed", "refused_later")


@dataclass(slots=True)
class ClientBooks:
    """What all clients saw.

    `broken` are the first few that should not be, with what was asked.
    """

    ends: Counter[End] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    longest_refusal_s: float = 0.0

    @property
    def sent(self) -> int:
        """Requests in all."""
        return self.ends.total()

    def note(self, ask: Ask, ending: Ending) -> None:
        """Count one request."""
        self.ends[ending.end] += 1
        streams = "stream" if ask.streams else "whole"
        self.by_kind[f"{ask.protocol} {streams} {'batch' if ask.batch else 'interactive'}"] += 1
        if ending.end is End.REFUSED:
            self.reasons[ending.reason] += 1
            if not ask.may_wait:
                self.longest_refusal_s = max(self.longest_refusal_s, ending.wall_s)
        elif ending.end is End.INVALID:
            self.reasons[ending.reason] += 1
        elif ending.end is End.BROKEN and len(self.broken) < 20:
            self.broken.append(f"{ask.name} {ask.protocol} {ask.fate} {ask.fault}: {ending.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBooks:
    """What the server's door counted from its start, both classes together."""

    entered: int
    in_flight: int
    left: Counter[str]
    refused: Counter[str]

    @classmethod
    def of(cls, report: DoorReport) -> "ServerBooks":
        """The sums of a door's counts."""
        left: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for each in report.classes:
            left.update({name: getattr(each, name) for name in _LEFT})
            refused.update(each.refused)
        return cls(
            entered=sum(each.entered for each in report.classes),
            in_flight=report.in_flight,
            left=left,
            refused=refused,
        )


def differences(clients: ClientBooks, server: ServerBooks) -> list[str]:
    """Where the books disagree, in words; empty when they agree.

    A client that went does not know what the server had made of its request by then: so many may
    be among the server's finished, refused, or never counted ones.
    """
    unknown = clients.ends[End.LEFT] + clients.ends[End.BROKEN]
    found = []

    def check(what: str, counted: int, least: int, most: int) -> None:
        if not least <= counted <= most:
            found.append(f"{what}: the server counted {counted}, clients {least} to {most}")

    left = server.left
    if server.in_flight:
        found.append(f"{server.in_flight} requests are still inside")
    if server.entered != server.in_flight + left.total():
        found.append(f"{server.entered} entered, and {left.total()} left: {dict(left)}")
    finished, refused = clients.ends[End.FINISHED], clients.ends[End.REFUSED]
    invalid = clients.ends[End.INVALID]
    check("finished", left["finished"], finished, finished + unknown)
    check("aborted", left["aborted"], 0, unknown)
    check("failed", left["failed"], 0, invalid + unknown)
    check("refused", server.refused.total(), refused, refused + unknown)
    for reason in sorted(set(clients.reasons) & set(server.refused) | set(server.refused)):
        told = clients.reasons[reason]
        check(f"refused, {reason}", server.refused[reason], told, told + unknown)
    at_the_door = server.refused.total() - left["refused_later"]
    check("all", server.entered + at_the_door, clients.sent - invalid - unknown, clients.sent)
    return found
