"""A live machine whose chips compute in this process, and requests served on it.

The scheduler is the simplest: each request runs on one rank, and moves with all its tokens to the
next rank that is up when its own loses its KV cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from emulator.sim.clock import VirtualClock
from emulator.specs.batch import StepBatch
from emulator.specs.step import NewRequest, RankStep, Scheduled
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.synthetic_tokens import SyntheticTokens
from serving.engine import token_source
from serving.engine.deployment import Deployment, resolve_deployment
from serving.engine.engine_time import EngineTime
from serving.engine.live_machine import LiveMachine, LiveStep
from serving.settings import Settings
from tests.emulator.chip.in_process import GREEDY, InProcessChips, serve
from tests.emulator.chip.in_process_fleet import InProcessFleet

KV_BLOCKS, BLOCK_TOKENS = 64, 16
BLOCKS_PER_REQUEST = 3

PROMPTS = {
    "a": list(range(300, 320)),
    "b": list(range(700, 709)),
    "c": [500, 3, 941, 77, 500, 12],
    "d": list(range(420, 431)),
}
NEW_TOKENS = 8


@dataclass(kw_only=True)
class LiveParts:
    """A deployment and its parts; `changes` counts arrivals and departures of chips."""

    deployment: Deployment
    machine: Machine
    tokens: Fleet | SyntheticTokens
    live: LiveMachine
    clock: VirtualClock
    changes: list[None] = field(default_factory=list)

    @property
    def fleet(self) -> InProcessFleet:
        assert isinstance(self.tokens, InProcessFleet)
        return self.tokens


def live_parts(**settings: Any) -> LiveParts:
    """The engine's parts for `settings`, with a fleet in this process."""
    deployment = resolve_deployment(Settings(**({"chips": 4} | settings)), SMALL_MOE_DIR)
    machine = deployment.machine(0.92)
    machine.take_kv(min(machine.kv_tokens_per_rank, 100_000))
    tokens = started_tokens(deployment, machine)
    clock = VirtualClock()
    parts: LiveParts
    live = LiveMachine(
        machine,
        tokens,
        same_model=deployment.time_model is deployment.weights,
        time=EngineTime(clock),
        on_change=lambda: parts.changes.append(None),
    )
    parts = LiveParts(deployment=deployment, machine=machine, tokens=tokens, live=live, clock=clock)
    return parts


def started_tokens(
    deployment: Deployment,
    machine: Machine,
    *,
    kv_blocks: int = KV_BLOCKS,
    block_tokens: int = BLOCK_TOKENS,
) -> InProcessFleet | SyntheticTokens:
    """`token_source.start_tokens`, without processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_source, "Fleet", InProcessFleet)
        tokens = token_source.start_tokens(
            deployment, machine, kv_blocks=kv_blocks, block_tokens=block_tokens
        )
    assert isinstance(tokens, InProcessFleet | SyntheticTokens)
    return tokens


def batch_of(parts: LiveParts, tokens: int) -> StepBatch:
    """One prompt of that many tokens on each rank."""
    ranks = parts.deployment.partition.ranks
    ones = np.ones(ranks, dtype=np.int64)
    return StepBatch(
        ranks=ranks,
        rank=np.arange(ranks),
        new_tokens=tokens * ones,
        context_tokens=0 * ones,
        logit_rows=ones,
    )


class Requests:
    """Requests on the ranks of a live machine, one step after the other."""

    def __init__(
        self, parts: LiveParts, prompts: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._parts = parts
        self.prompts = prompts or PROMPTS
        self.texts: dict[str, list[int]] = {name: [] for name in self.prompts}
        self.rank_of = {
            name: index % parts.deployment.partition.ranks
            for index, name in enumerate(self.prompts)
        }
        self._known: set[str] = set()  # to the chips of their ranks
        self.steps: list[LiveStep] = []

    @property
    def unfinished(self) -> bool:
        return any(len(text) < NEW_TOKENS for text in self.texts.values())

    def step(self) -> LiveStep:
        """One step of every incomplete request whose rank is up."""
        ranks = [self._rank_step(rank) for rank in range(self._parts.deployment.partition.ranks)]
        done = self._parts.live.step([step for step in ranks if step.scheduled], {})
        self.steps.append(done)
        for output in done.result.outputs.values():
            for name, token in zip(output.request_ids, output.token_ids.tolist(), strict=True):
                self.texts[name].append(token)
        self._move(done.lost_ranks)
        return done

    def serve(
        self, at_step: Mapping[int, Callable[[], object]] | None = None
    ) -> dict[str, list[int]]:
        """Serve to the end, with events before some steps; returns the texts."""
        number = 0
        while self.unfinished:
            (at_step or {}).get(number, lambda: None)()
            self.step()
            number += 1
            assert number < 10 * NEW_TOKENS, "it does not end"
        return self.texts

    def _rank_step(self, rank: int) -> RankStep:
        new, scheduled = [], []
        for index, (name, prompt) in enumerate(self.prompts.items()):
            text = self.texts[name]
            up = self._parts.machine.ranks_up[rank]
            if self.rank_of[name] != rank or len(text) >= NEW_TOKENS or not up:
                continue
            tokens = [*prompt, *text]
            known = len(tokens) - 1 if name in self._known else 0
            if name not in self._known:
                first = 1 + index * BLOCKS_PER_REQUEST
                new.append(
                    NewRequest(
                        request_id=name,
                        token_ids=tokens,
                        prompt_tokens=len(prompt),
                        sampling=GREEDY,
                        block_ids=list(range(first, first + BLOCKS_PER_REQUEST)),
                    )
                )
                self._known.add(name)
            scheduled.append(
                Scheduled(request_id=name, first_position=known, new_tokens=len(tokens) - known)
            )
        return RankStep(rank=rank, new=new, scheduled=scheduled, finished=[])

    def _move(self, lost_ranks: Sequence[int]) -> None:
        up = np.flatnonzero(self._parts.machine.ranks_up).tolist()
        for name, rank in self.rank_of.items():
            if rank in lost_ranks:
                self._known.discard(name)
            if up and rank not in up:
                later = [other for other in up if other > rank]
                self.rank_of[name] = (later or up)[0]


def texts_of_one_chip(prompts: Mapping[str, Sequence[int]] = PROMPTS) -> dict[str, list[int]]:
    """The undisturbed texts of one chip."""
    return serve(
        InProcessChips(SMALL_MOE_DIR, chips=1, kv_blocks=KV_BLOCKS), prompts, new_tokens=NEW_TOKENS
    )
