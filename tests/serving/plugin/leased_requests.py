"""Requests on a running engine whose chips come and go, with a simple scheduler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from serving.engine.scheduler_state import RankQueues
from serving.plugin.request_place import NOWHERE
from serving.wire.control_call import (
    DrainRequest,
    LeaseReport,
    Refusal,
    ResumeRequest,
    TrainingNote,
)
from serving.wire.machine_state import LeaseState, TrainingTotals
from tests.serving.plugin.live_parts import NEW_TOKENS, Requests
from tests.serving.plugin.running_engine import Running, ShownReport, heard, shown


class Served(Requests):
    """Requests and their engine: each step is announced, computed and reported.

    A request whose rank is lost goes on in the next rank, preferably with its weights; without one
    it waits.
    """

    def __init__(
        self, running: Running, prompts: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        super().__init__(running.parts, prompts)
        self.running = running
        self.reports: list[ShownReport] = []
        self.moved = 0
        self._up = np.ones(running.parts.deployment.partition.ranks, dtype=np.bool_)
        self._closed: tuple[int, ...] = ()
        self._weights: tuple[str, ...] = running.engine.report().weights
        self._weights_of: dict[str, str] = {}  # of requests that wait for a rank

    def turn(self) -> ShownReport:
        """One lockstep: the schedulers' decisions, the step, and its report."""
        ranks = range(len(self._up))
        steps = [self._rank_step(rank) for rank in ranks]
        wanted = [step for step in steps if step.scheduled]
        self.hear(sum(len(step.scheduled) for step in wanted))
        engine = self.running.engine
        outputs, report = {}, None
        if wanted:
            outputs, report = self.running.run(wanted)
        else:
            report = engine.report()
        for output in outputs.values():
            for name, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
                self.texts[name].append(token)
        now = shown(engine, report)
        self._take(now)
        return now

    def hear(self, tokens: int) -> None:
        waiting = [0] * len(self._up)
        for name, rank in self.rank_of.items():
            if rank != NOWHERE:
                waiting[rank] += len(self.texts[name]) < NEW_TOKENS
        queues = tuple(RankQueues(running=n, waiting=0, kv_blocks_used=n) for n in waiting)
        output = heard(
            rank_states=queues,
            has_tokens=tokens > 0,
            moved_requests=self.moved,
            closed_ranks=self._closed,
        )
        self.running.engine.hear(output)

    def _take(self, report: ShownReport) -> None:
        assert report.ranks_up is not None
        self._up, self._closed = np.array(report.ranks_up), report.closed_ranks
        takes = [r for r in np.flatnonzero(self._up).tolist() if r not in self._closed]
        for name, rank in self.rank_of.items():
            if rank != NOWHERE and rank not in report.lost_ranks and self._up[rank]:
                continue
            self._known.discard(name)
            own = self._weights_of.get(name) or self._weights[rank]
            same = [r for r in takes if report.weights[r] == own] or takes
            if not same:
                self.rank_of[name], self._weights_of[name] = NOWHERE, own
                continue
            self.moved += len(self.texts[name]) < NEW_TOKENS
            self.rank_of[name] = ([r for r in same if r > rank] or same)[0]
            self._weights_of.pop(name, None)
        self._weights = report.weights
        self.reports.append(report)

    def serve_on(
        self, at_turn: Mapping[int, Callable[[], object]] | None = None
    ) -> dict[str, list[int]]:
        """Serve to the end, with events before some turns; returns the texts."""
        number = 0
        while self.unfinished or number <= max(at_turn or {0: None}):
            (at_turn or {}).get(number, lambda: None)()
            self.turn()
            number += 1
            assert number < 12 * NEW_TOKENS, "it does not end"
        return self.texts


def drain(running: Running, *chips: int, grace_s: float = 0.0, **more: Any) -> LeaseReport:
    reply = running.ask(DrainRequest(chips=chips, grace_s=grace_s, **more))
    assert isinstance(reply, LeaseReport), reply
    return reply


def refused_drain(running: Running, *chips: int) -> str:
    reply = running.ask(DrainRequest(chips=chips, grace_s=0.0))
    assert isinstance(reply, Refusal), reply
    return reply.message


def resume(running: Running, lease: int) -> LeaseState:
    reply = running.ask(ResumeRequest(lease=lease))
    assert isinstance(reply, LeaseReport), reply
    assert reply.lease is not None
    return reply.lease


def lease_of(running: Running, number: int) -> LeaseState:
    return next(lease for lease in running.state().leases if lease.number == number)


def note(lease: int, **changes: Any) -> TrainingNote:
    values: dict[str, Any] = {
        "steps": 1,
        "tokens": 100,
        "loss": 5.0,
        "joules": 0.0,
        "emulated_s": 0.0,
        "watts": 0.0,
        "hbm_bytes_per_chip": 0,
    }
    return TrainingNote(lease=lease, totals=TrainingTotals(**(values | changes)))
