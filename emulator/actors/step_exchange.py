"""How the chips of a fleet exchange the rows of a step: by the hub's messages, or, on one host,
through memory that they share.

Either way a step's attempt says what is sent, takes the answers, and has the same result.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import numpy as np

from emulator.actors.barrier_kernel import BROKEN_BIT, can_wait
from emulator.actors.channel import Channel
from emulator.actors.exchange_kernel import break_off, read_loads
from emulator.actors.exchange_segment import (
    ANSWERED,
    LAYERS,
    LIMIT,
    MEMBERS,
    SLOTS,
    SOURCES,
    TURNS,
    ExchangeSegment,
)
from emulator.arrays import Int64s
from emulator.chip.commands import BeginStep, Command, JoinExchange, JoinStep, RepeatStep
from emulator.chip.effects import Effect, dispatched_tokens
from emulator.compute.architecture import Architecture
from emulator.compute.exchange_sizes import WORD_STRIDE
from emulator.errors import ChipLost
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.placement import ExpertPlacement
from emulator.specs.step import RankOutput
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.lockstep import Lockstep, StepResult, leading_outputs

Begin = Mapping[int, BeginStep | RepeatStep]

_TOKENS_AT_FIRST: Final = 4_096
"""Tokens of a step that the first segment has room for; a larger step has a larger one made."""

_ROWS_KEPT_BYTES: Final = 64 << 20
"""Memory of a step's rows that is kept for the next; more goes back to the system."""

_TURNS: Final = 50
"""Turns, of a microsecond or so, that a wait gives way for before it sleeps, where chips are few:
to sleep and be woken costs more than that."""

_FEW_PER_CORE: Final = 2

_LIMIT_NS: Final = 500_000_000
"""A chip that waits looks twice a second whether the engine's process is still there."""


class StepAttempt(Protocol):
    """One attempt at a step, as `Lockstep` is one."""

    outputs: dict[int, RankOutput]

    def start(self) -> dict[int, Command]:
        """The first commands, by chip."""

    def advance(self, replies: Mapping[int, Effect]) -> dict[int, Command]:
        """Take all answers to the last commands; returns the next ones, none at the end."""

    def note_done(self, replies: Mapping[int, Effect]) -> None:
        """Keep the outputs of leading chips, also of a step that broke off."""

    @property
    def ran_all_layers(self) -> bool:
        """Whether every layer's experts have been computed."""

    def result(self, outputs: dict[int, RankOutput]) -> StepResult:
        """The step's result with `outputs`; loads are of the layers that this attempt ran."""


class StepExchange(Protocol):
    """Exchanges rows among a fleet's chips."""

    def set_placement(self, placement: ExpertPlacement) -> None:
        """Send rows to other slots from the next attempt on."""

    def attempt(self, begin: Begin, live: Collection[int]) -> StepAttempt:
        """Begin a step with a command for each chip that has tokens, among `live` ones."""

    def break_off(self) -> None:
        """End the attempt for chips that wait for one that does not come; idempotent."""

    def forget_chips(self) -> None:
        """Have nothing to do any more with chips that were lost."""

    def waits(self, chip: int) -> bool:
        """Whether `chip` is inactive because it waits for others."""

    def progress(self) -> int:
        """A number that grows as a step goes on."""


class HubExchange:
    """Rows travel through the hub, between all nodes."""

    def __init__(self, placement: ExpertPlacement, tp: int, *, drafts: bool = False) -> None:
        """With `drafts`, a further layer that drafts is placed as the last is."""
        self._experts = ExpertMap(placement, drafts=drafts)
        self._tp = tp
        self._drafts = drafts

    def set_placement(self, placement: ExpertPlacement) -> None:  # noqa: D102
        self._experts = ExpertMap(placement, drafts=self._drafts)

    def attempt(self, begin: Begin, live: Collection[int]) -> Lockstep:  # noqa: D102
        del live
        return Lockstep(begin, self._experts, self._tp)

    def break_off(self) -> None:
        """Nobody waits for another chip."""

    def forget_chips(self) -> None:
        """There is nothing to forget."""

    def waits(self, chip: int) -> bool:
        """No chip waits for another."""
        del chip
        return False

    def progress(self) -> int:
        """Answers alone are progress."""
        return 0


class SharedExchange:
    """Rows travel through memory that the chips of one host share.

    Without a lost chip it is the same memory in all steps; after a loss another one is made, since
    a chip given up as silent may still write. `send_all` is the channel's.
    """

    def __init__(
        self,
        placement: ExpertPlacement,
        arch: Architecture,
        *,
        tp: int,
        slots_max: int,
        send_all: Callable[[Mapping[int, Command]], None],
    ) -> None:
        self._arch = arch
        self._tp = tp
        self._attending = arch.attending_chips(tp)
        self._slots_max = slots_max
        self._send_all = send_all
        self._few = _FEW_PER_CORE * (os.cpu_count() or 1)
        self._tokens_of_rank: dict[int, int] = {}
        self._segment: ExchangeSegment | None = None
        self._joined: set[int] = set()
        self._placement = placement
        self._place = ExpertMap(placement).place

    def set_placement(self, placement: ExpertPlacement) -> None:  # noqa: D102
        self._placement = placement
        self._place = ExpertMap(placement).place
        if self._segment is not None:
            self._segment.areas.place[:] = self._place

    def attempt(self, begin: Begin, live: Collection[int]) -> "SharedAttempt":  # noqa: D102
        for chip, command in begin.items():
            if isinstance(command, BeginStep) and chip % self._tp == 0:
                scheduled = command.step.scheduled
                self._tokens_of_rank[chip // self._tp] = sum(each.new_tokens for each in scheduled)
        tokens = self._tokens_of_chip(begin)
        segment = self._segment_for(tokens)
        sources = sum(self._tokens_of_rank[chip // self._tp] > 0 for chip in begin)
        layers = len(self._arch.expert_layers) if sources else 0
        commands: dict[int, Command] = dict(begin)
        if layers:
            all_chips = sorted({*live, *begin})  # one that is begun with and gone is lost again
            commands = {chip: begin.get(chip) or JoinStep() for chip in all_chips}
        areas = segment.areas
        areas.words[:] = 0
        areas.waiting[:] = 0
        areas.step[SOURCES], areas.step[MEMBERS] = sources, len(commands)
        areas.step[SLOTS], areas.step[LAYERS] = self._placement.slots, layers
        areas.step[TURNS] = _TURNS if len(commands) <= self._few else 0
        areas.first_token[0] = 0
        np.cumsum(tokens, out=areas.first_token[1:])
        join = {chip: segment.sizes for chip in commands if chip not in self._joined}
        if join:
            self._joined.update(join)
            with contextlib.suppress(ChipLost):  # who sends it the step's command will hear of it
                self._send_all(join)
        return SharedAttempt(segment, self._placement, self._tp, commands)

    def _tokens_of_chip(self, begin: Begin) -> Int64s:
        """The tokens that each chip dispatches: [chips]."""
        tokens = np.zeros(self._placement.chips, dtype=np.int64)
        for chip in begin:
            of_rank, part = self._tokens_of_rank[chip // self._tp], chip % self._tp
            own = dispatched_tokens(of_rank, part, self._attending)
            tokens[chip] = own.stop - own.start
        return tokens

    def _segment_for(self, tokens: Int64s) -> ExchangeSegment:
        wanted = int(tokens.sum())
        if self._segment is not None and wanted > self._segment.sizes.tokens:
            self.forget_chips()
        if self._segment is None:
            placement = self._placement
            self._segment = ExchangeSegment.make(
                JoinExchange.of(
                    self._arch,
                    chips=placement.chips,
                    tp=self._tp,
                    slots=max(self._slots_max, placement.slots),
                    tokens=max(_TOKENS_AT_FIRST, 1 << (wanted - 1).bit_length()),
                )
            )
            self._segment.areas.place[:] = self._place
            self._segment.areas.step[LIMIT : LIMIT + 2] = 0, _LIMIT_NS
        return self._segment

    def break_off(self) -> None:  # noqa: D102
        if self._segment is not None:
            break_off(self._segment.handle, WORD_STRIDE)

    def forget_chips(self) -> None:  # noqa: D102
        if self._segment is not None:
            self._segment.close()
        self._segment = None
        self._joined.clear()

    def waits(self, chip: int) -> bool:  # noqa: D102
        return self._segment is not None and bool(self._segment.areas.waiting[chip])

    def progress(self) -> int:  # noqa: D102
        return 0 if self._segment is None else _arrivals(self._segment)


def _arrivals(segment: ExchangeSegment) -> int:
    return int((segment.areas.words[::WORD_STRIDE] & ~np.uint32(BROKEN_BIT)).sum())


class SharedAttempt:
    """An attempt of which the hub hears the end alone; `commands` begin it."""

    def __init__(
        self,
        segment: ExchangeSegment,
        placement: ExpertPlacement,
        tp: int,
        commands: dict[int, Command],
    ) -> None:
        self.outputs: dict[int, RankOutput] = {}
        self._segment = segment
        self._placement = placement
        self._tp = tp
        self._commands = commands

    def start(self) -> dict[int, Command]:  # noqa: D102
        return self._commands

    def advance(self, replies: Mapping[int, Effect]) -> dict[int, Command]:  # noqa: D102
        self.note_done(replies)
        areas = self._segment.areas
        if int(areas.first_token[-1]) * self._segment.bytes_per_token > _ROWS_KEPT_BYTES:
            self._segment.forget_rows()
        return {}

    def note_done(self, replies: Mapping[int, Effect]) -> None:  # noqa: D102
        self.outputs.update(leading_outputs(replies, self._tp))

    def result(self, outputs: dict[int, RankOutput]) -> StepResult:  # noqa: D102
        ran = self._layers_run()
        if not ran:
            return StepResult(outputs=outputs)
        placement = self._placement
        pairs, distinct, sent, by_expert = read_loads(
            self._segment.handle, ran, placement.expert_of_slot, placement.experts, placement.ep
        )
        loads = ExpertLoads(pairs=pairs, distinct=distinct, sent=sent)
        return StepResult(outputs=outputs, loads=loads, expert_pairs=by_expert)

    @property
    def ran_all_layers(self) -> bool:  # noqa: D102
        return self._layers_run() == int(self._segment.areas.step[LAYERS])

    def _layers_run(self) -> int:
        areas = self._segment.areas
        answers = int(areas.words[ANSWERED]) & ~BROKEN_BIT
        return answers // int(areas.step[MEMBERS]) if areas.step[LAYERS] else 0


def choose_exchange(
    channel: Channel,
    placement: ExpertPlacement,
    arch: Architecture,
    *,
    tp: int,
    slots_max: int,
    drafts: bool,
) -> StepExchange:
    """The exchange of a fleet whose chips are on `channel`.

    A layer that drafts (`drafts`) runs as often as some rank guesses, which the hub alone follows.
    """
    if channel.is_on_one_host and can_wait() and not drafts:
        return SharedExchange(
            placement, arch, tp=tp, slots_max=slots_max, send_all=channel.send_all
        )
    return HubExchange(placement, tp, drafts=drafts)
