"""Totals of a soak's clients against the gateway's and the engine's."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.wire.admission_report import AdmissionReport
from tests.benchmarks.soak.asks import Ask, End, Ending

_LEFT = ("finished", "aborted", "failed", "refused_later")


@dataclass(slots=True)
class ClientBooks:
    """The clients' totals.

    `refusals` and `invalids` are by the server's reason. Of requests whose client went, `begun` had
    some of an answer, `silent` may not have entered. `wrong` are invalid ones that entered,
    `turned_away` those that did not. `finished_sequences` sums vLLM's `n`. `broken` are the first
    few failures.
    """

    ends: Counter[End] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    invalids: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    silent: list[Ask] = field(default_factory=list)
    wrong: int = 0
    turned_away: int = 0
    finished_sequences: int = 0
    left_sequences: int = 0
    broken: list[str] = field(default_factory=list)
    longest_refusal_s: float = 0.0

    @property
    def sent(self) -> int:
        return self.ends.total()

    def note(self, ask: Ask, ending: Ending) -> None:
        self.ends[ending.end] += 1
        streams = "stream" if ask.streams else "whole"
        self.by_kind[f"{ask.protocol} {streams} {'batch' if ask.batch else 'interactive'}"] += 1
        if ending.end is End.FINISHED:
            self.finished_sequences += ask.sequences
        elif ending.end is End.REFUSED:
            self.refusals[ending.reason] += 1
            if not ask.may_wait:
                self.longest_refusal_s = max(self.longest_refusal_s, ending.wall_s)
        elif ending.end is End.INVALID:
            self.invalids[ending.reason] += 1
            self.wrong += ask.enters
            self.turned_away += not ask.enters
        else:
            self._note_gone(ask, ending)

    def _note_gone(self, ask: Ask, ending: Ending) -> None:
        self.left_sequences += ask.sequences
        if ending.begun:
            self.begun += 1
        else:
            self.silent.append(ask)
        if ending.end is End.BROKEN and len(self.broken) < 20:
            self.broken.append(f"{ask.name} {ask.protocol} {ask.fate} {ask.fault}: {ending.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBooks:
    """The server's gateway since its start, both classes together."""

    entered: int
    in_flight: int
    left: Counter[str]
    refused: Counter[str]

    @classmethod
    def of(cls, report: AdmissionReport) -> "ServerBooks":
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBooks:
    """vLLM's own counts: requests whose every sequence ran to its end, and those sequences. It does
    not count aborted ones.
    """

    finished: int
    sequences: int

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> "EngineBooks":
        """From /metrics, samples summed over labels."""
        name = "vllm:request_params_n"
        return cls(
            finished=round(metrics.get(f"{name}_count", 0.0)),
            sequences=round(metrics.get(f"{name}_sum", 0.0)),
        )


def differences(clients: ClientBooks, server: ServerBooks, engine: EngineBooks) -> list[str]:
    """Disagreements of the books, in words.

    A client that went does not know its request's state: it may have finished, or, if the client
    heard nothing, been refused for a possible reason, or never have arrived.
    """
    found = []

    def check(what: str, counted: int, least: int, most: int) -> None:
        if not least <= counted <= most:
            found.append(f"{what}: {counted} were counted, {least} to {most} are accounted for")

    left = server.left
    if server.in_flight:
        found.append(f"{server.in_flight} requests are still inside")
    if server.entered != server.in_flight + left.total():
        found.append(f"{server.entered} entered, and {left.total()} left: {dict(left)}")
    finished, refused = clients.ends[End.FINISHED], clients.ends[End.REFUSED]
    silent = sum(ask.enters for ask in clients.silent)
    unknown = clients.begun + silent
    check("finished", left["finished"], finished, finished + unknown)
    check("aborted", left["aborted"], 0, unknown)
    check("failed", left["failed"], 0, clients.wrong + silent)
    check(
        "ended without an answer or by its client",
        left["finished"] + left["aborted"] + left["failed"],
        finished + clients.begun,
        finished + unknown + clients.wrong,
    )
    check("refused", server.refused.total(), refused, refused + silent)
    for reason in sorted(set(clients.refusals) | set(server.refused)):
        told = clients.refusals[reason]
        may = sum(ask.may_be_refused(reason) for ask in clients.silent)
        check(f"refused, {reason}", server.refused[reason], told, told + may)
    came = server.entered + server.refused.total() - left["refused_later"]
    surely = finished + clients.begun + refused
    check("all", came, surely, surely + silent + clients.wrong)
    # The engine may have made the last token when the gateway hears that the client has gone.
    check(
        "finished by the engine",
        engine.finished,
        left["finished"],
        left["finished"] + left["aborted"],
    )
    check(
        "sequences finished by the engine",
        engine.sequences,
        clients.finished_sequences,
        clients.finished_sequences + clients.left_sequences,
    )
    return found
