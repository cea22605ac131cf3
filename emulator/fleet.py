"""Live serving chips: start, compute a step, move experts, lose and replace chips.

A step goes layer by layer: every rank's tokens are dispatched to the experts' chips and come back,
all ranks together; through shared memory on one host, by messages between several. The fleet
reports lost chips and carries out decisions; emulated cost and recovery are decided elsewhere.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from emulator.actors.chip_processes import ChipProcesses
from emulator.actors.chip_watch import ChipWatch
from emulator.actors.ray_session import HomeNode
from emulator.actors.step_exchange import HubExchange, StepExchange, choose_exchange
from emulator.arrays import Int32s, Int64s
from emulator.chip.chip_share import ChipShare
from emulator.chip.commands import (
    NO_BITMASK,
    NO_TOKENS,
    BeginStep,
    Command,
    Hang,
    LoadExperts,
    LoadWeights,
    RepeatStep,
    ReportCondition,
    ResetRank,
    SendExperts,
    SendKv,
    TakeKv,
)
from emulator.chip.effects import ChipFailed, Condition, Effect, NotLoaded
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_weights
from emulator.compute.host_memory import HostNeed, host_need
from emulator.compute.stored_weights import maps_weights
from emulator.errors import ChannelError, CheckpointError, ChipLost, ChipSilent
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from emulator.specs.step import KvTransfer, RankOutput, RankStep
from emulator.ultraserver.expert_transfers import load_commands, slots_to_send, take_commands
from emulator.ultraserver.kv_parts import divided_kv
from emulator.ultraserver.lockstep import Interrupted, StepResult, UnfinishedStep, all_of

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

SILENCE_TIMEOUT_S = 120.0
"""Longest wait for a computing chip's answer: a step of a tray takes milliseconds, the largest
prefills of 144 chips on two cores 30 s. An inactive chip is given up earlier."""
HUNG_TIMEOUT_S = 0.5
"""Wait for a chip that has been made to hang: nothing but its silence says so."""


class Fleet:
    """The chips of a partition, each a part of a rank's attention replica and some of the experts.

    `silent` are the chips lost by silence, until they are removed.

    Args:
        weights_dir: Hugging Face checkpoint that computes the tokens.
        tp: chips of a rank. As many of the first as divide its head groups evenly share them; the
            others have experts alone.
        kv_blocks, block_tokens: the KV pool of each rank.
        slots_max: slots of each chip in each layer, also in placements to come; by default those of
            `placement`.
        ray_address: a running Ray cluster to join; None starts a private one.
        ray_node: number of its node that has all chips, if it has room; None spreads them.
        silence_timeout_s: wall seconds without activity after which a chip is lost.
        formats: of the weights on the chips, and of keys and values.
        draft_tokens: guesses after each text; made by the model in `draft_dir`, or without one by
            the checkpoint's layer that drafts.

    Raises:
        CheckpointError: the checkpoint cannot be computed, before any process is started; from
            `start`, this host has not the memory for its chips.
        ChannelError: from `start`, when a chip does not start.
        ChipLost: from `step` and `resume`, when chips are gone, or failed.
    """

    def __init__(  # noqa: PLR0913  a keyword for each thing in which fleets differ
        self,
        *,
        weights_dir: Path,
        placement: ExpertPlacement,
        tp: int = 1,
        kv_blocks: int,
        block_tokens: int,
        slots_max: int = 0,
        ray_address: str | None = None,
        ray_node: int | None = None,
        silence_timeout_s: float = 10.0,
        formats: ModelFormats = FP32_MODEL,
        draft_tokens: int = 0,
        draft_dir: Path | None = None,
    ) -> None:
        self.architecture: Architecture = check_weights(weights_dir)
        assert placement.layers == len(self.architecture.expert_layers), placement.layers
        assert placement.experts == self.architecture.experts, placement.experts
        self.tp = tp
        self.placement = placement
        self._draft_tokens = draft_tokens
        self._draft_dir = draft_dir
        self._drafts_by_layer = draft_tokens > 0 and draft_dir is None
        self._weights_of: dict[int, Path] = dict.fromkeys(range(placement.chips), weights_dir)
        self._maps_experts = {weights_dir: maps_weights(weights_dir, formats)}
        self._kv_blocks = kv_blocks
        self._block_tokens = block_tokens
        self._formats = formats
        self._slots = max(slots_max, placement.slots)
        home = None
        if ray_node is not None:
            home = HomeNode(number=ray_node, need_bytes=self._host_need(self.chips).total_bytes)
        self._processes = ChipProcesses(ray_address, home)
        self._exchange: StepExchange = HubExchange(placement, tp, drafts=self._drafts_by_layer)
        self._sampled: dict[int, RankOutput] = {}
        self._step: UnfinishedStep | None = None
        self._hung: set[int] = set()
        self._watch = ChipWatch(silence_timeout_s)
        self.silent: set[int] = set()

    @property
    def chips(self) -> int:
        """Chips of the partition, lost ones included."""
        return self.placement.chips

    @property
    def live_chips(self) -> frozenset[int]:
        """Chips that are started and not known to be lost."""
        return self._processes.live

    def start(self) -> None:
        """Start Ray and the chips, and wait until each has loaded its shard."""
        try:
            self._processes.open()
            self._check_host()
            self._exchange = choose_exchange(
                self._processes.channel,
                self.placement,
                self.architecture,
                tp=self.tp,
                slots_max=self._slots,
                drafts=self._drafts_by_layer,
            )
            self._start_chips(range(self.chips))
        except BaseException:
            self.stop()
            raise

    def _host_need(self, chips: int) -> HostNeed:
        return host_need(
            self._weights_of[0],
            chips=chips,
            tp=self.tp,
            slots=self.placement.slots,
            formats=self._formats,
            drafts=self._drafts_by_layer,
            draft_dir=self._draft_dir,
            one_host=chips == self.chips,
        )

    def _check_host(self) -> None:
        need = self._host_need(self._processes.chips_here(self.chips))
        need.check(psutil.virtual_memory().available)
        logger.info("%s", need)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` once, from another thread, with the name of a daemon that ended."""
        self._processes.watch(lost)

    def _start_chips(self, chips: Sequence[int]) -> None:
        shares = {
            chip: ChipShare(
                weights_dir=str(self._weights_of[chip]),
                experts=self._experts_of(chip),
                kv_blocks=self._kv_blocks,
                block_tokens=self._block_tokens,
                tp=self._attending,
                tp_index=chip % self.tp,
                formats=self._formats,
                draft_tokens=self._draft_tokens,
                draft_dir=str(self._draft_dir or ""),
            )
            for chip in chips
        }
        for ready in self._processes.start(shares, chips=self.chips):
            self._watch.add(ready)

    def _experts_of(self, chip: int) -> list[list[int]]:
        """The expert of each slot of a chip, future slots included, for each layer."""
        experts: list[list[int]] = self.placement.padded(self._slots)[:, chip].tolist()
        return experts

    def step(self, steps: Sequence[RankStep], bitmasks: Mapping[int, Int32s]) -> StepResult:
        """Compute one step of every rank in `steps`; after ChipLost, `resume` finishes it.

        `bitmasks`: grammar bitmasks of ranks with constrained requests.
        """
        assert self._step is None, "the last step is unfinished"
        begin: dict[int, BeginStep | RepeatStep] = {}
        for step in steps:
            begin.update(self._begin(step, bitmasks.get(step.rank, NO_BITMASK)))
        self._step = UnfinishedStep(ranks={step.rank for step in steps})
        return self._drive(begin)

    @property
    def has_loads(self) -> bool:
        """Whether an attempt at the unfinished step computed every layer: its loads will count."""
        return self._step is not None and self._step.whole is not None

    def resume(self, lost_ranks: Collection[int]) -> StepResult:
        """Finish the step that lost chips, with the ranks that have no output yet.

        Ranks not in `lost_ranks` repeat it from its first layer, with the same outcome.
        """
        assert self._step is not None, "there is no unfinished step"
        self._step.ranks -= set(lost_ranks)
        again = self._step.ranks - self._step.outputs.keys()
        return self._drive({chip: RepeatStep() for rank in again for chip in self._rank(rank)})

    def _begin(self, step: RankStep, bitmask: Int32s) -> dict[int, BeginStep]:
        """The commands that begin a rank's step; followers also get the tokens sampled last.

        With a layer that drafts they sample themselves, under the same bitmask.
        """
        lead, *others = self._rank(step.rank)
        commands = {lead: BeginStep(step=step, grammar_bitmask=bitmask)}
        sampled = self._sampled.pop(step.rank, None)
        for chip in others:
            commands[chip] = BeginStep(
                step=step,
                grammar_bitmask=bitmask if self._drafts_by_layer else NO_BITMASK,
                sampled_ids=sampled.request_ids if sampled else [],
                sampled_tokens=sampled.token_ids if sampled else NO_TOKENS,
            )
        return commands

    def _drive(self, begin: Mapping[int, BeginStep | RepeatStep]) -> StepResult:
        unfinished = self._step
        assert unfinished is not None
        attempt = self._exchange.attempt(begin, self.live_chips)
        commands = attempt.start()
        try:
            while commands:
                replies = self._ask(commands)
                commands = attempt.advance(replies)
        except Interrupted as loss:
            attempt.note_done(loss.replies)
            if attempt.outputs and attempt.ran_all_layers and unfinished.whole is None:
                unfinished.whole = attempt.result(attempt.outputs)
            unfinished.outputs.update(attempt.outputs)
            self._exchange.forget_chips()
            raise ChipLost(loss.chips) from loss
        unfinished.outputs.update(attempt.outputs)
        self._step = None
        if self.tp > 1:
            # Ranks that were lost on the way have forgotten their requests.
            outputs = unfinished.outputs.items()
            self._sampled.update((rank, out) for rank, out in outputs if rank in unfinished.ranks)
        # Ranks that had to repeat sent the same tokens as in an attempt that had all its layers.
        counted = unfinished.whole or attempt.result(unfinished.outputs)
        return replace(counted, outputs=unfinished.outputs)

    def _ask(self, commands: Mapping[int, Command]) -> dict[int, Effect]:
        """Send every command and wait for each answer; raises `Interrupted`."""
        lost: set[int] = set()
        try:
            self._processes.channel.send_all(commands)
        except ChipLost as error:
            lost.update(error.chips)
        replies: dict[int, Effect] = {}
        hung = commands.keys() & self._hung
        if hung:
            drained = self._processes.channel.drain(hung, HUNG_TIMEOUT_S)
            self._hear(drained.replies.items(), replies, lost)
            lost.update((*drained.lost, *drained.silent))
        while waiting := commands.keys() - replies.keys() - lost:
            if lost:
                self._exchange.break_off()
            try:
                self._hear(self._arriving(commands, waiting), replies, lost)
            except (ChipLost, ChipSilent) as error:
                lost.update(error.chips)
                self.silent.update(error.chips if isinstance(error, ChipSilent) else ())
        if lost:
            raise Interrupted(tuple(sorted(lost)), replies)
        return replies

    def _hear(self, arriving: Iterable[Any], replies: dict[int, Effect], lost: set[int]) -> None:
        for chip, reply in arriving:
            if isinstance(reply, ChipFailed):  # its state is undefined, and it answers no more
                logger.error("chip %d failed and is lost: %s", chip, reply.reason)
                lost.add(chip)
                self._exchange.break_off()
            else:
                replies[chip] = reply

    def _arriving(self, commands: Mapping[int, Command], chips: Collection[int]) -> Iterator[Any]:
        reads = LoadExperts | LoadWeights
        return self._watch.receive(
            self._processes.channel,
            chips,
            SILENCE_TIMEOUT_S,
            waits=lambda chip: isinstance(commands[chip], reads) or self._exchange.waits(chip),
            progress=self._exchange.progress,
        )

    def remove(self, chips: Collection[int], lost_ranks: Collection[int]) -> None:
        """Remove `chips` in any state; the rest of `lost_ranks` forget their requests.

        Raises ChipLost when another chip was lost meanwhile, after the removal.
        """
        for chip in chips:
            self._take_out(chip)
        for rank in lost_ranks:
            self._sampled.pop(rank, None)
        left = [chip for rank in lost_ranks for chip in self._rank(rank) if chip in self.live_chips]
        self._tell(dict.fromkeys(left, ResetRank()))

    def _take_out(self, chip: int) -> None:
        self._processes.remove(chip)
        self._exchange.forget_chips()
        self._hung.discard(chip)
        self.silent.discard(chip)
        self._watch.forget(chip)

    def add(self, chip: int, placement: ExpertPlacement) -> None:
        """Start a chip in place of a lost one, with its experts by `placement`.

        Raises ChipLost, after cleaning up, when it does not start or is lost at once.
        """
        assert chip not in self.live_chips, chip
        held = self.placement.padded(placement.slots)
        held[:, chip] = EMPTY
        held[:, chip, : placement.slots] = placement.expert_of_slot[:, chip]
        self._set_placement(replace(self.placement, expert_of_slot=held))
        try:
            self._start_chips([chip])
        except ChannelError as error:
            self._take_out(chip)
            raise ChipLost((chip,), str(error)) from error

    def renew(self, chips: Collection[int], weights_dir: Path) -> None:
        """Load another checkpoint of the same architecture into `chips`; absent ones load it when
        added.

        Chips that exchange experts hold the same checkpoint, and their ranks have no requests.
        Raises CheckpointError when a chip cannot read it, and all keep the old weights; ChipLost
        when a chip was lost, and the others hold the new weights.
        """
        maps_experts = maps_weights(weights_dir, self._formats)
        before = {chip: self._weights_of[chip] for chip in chips}
        live = sorted(set(chips) & self.live_chips)
        lost: tuple[int, ...] = ()
        try:
            replies = self._ask({chip: self._load_weights(chip, weights_dir) for chip in live})
        except Interrupted as loss:
            replies, lost = loss.replies, loss.chips
        refused = [reply.reason for reply in replies.values() if isinstance(reply, NotLoaded)]
        if refused:
            loaded = [chip for chip, reply in replies.items() if not isinstance(reply, NotLoaded)]
            with contextlib.suppress(ChipLost):  # the next step meets it
                back = {chip: self._load_weights(chip, before[chip]) for chip in loaded}
                for chip, reply in self._tell(back).items():
                    if isinstance(reply, NotLoaded):  # better no chip than one that differs
                        self.kill(chip)
            raise CheckpointError(refused[0])
        self._weights_of.update(dict.fromkeys(chips, weights_dir))
        self._maps_experts[weights_dir] = maps_experts
        if lost:
            raise ChipLost(lost)

    def _load_weights(self, chip: int, weights_dir: Path) -> LoadWeights:
        return LoadWeights(weights_dir=str(weights_dir), experts=self._experts_of(chip))

    def place(self, placement: ExpertPlacement, transfers: Sequence[ExpertTransfer]) -> None:
        """Move weights until `placement` holds: from chip to chip, or from the checkpoint.

        Chips with different checkpoints never exchange experts: they read their own. A layer's
        reads precede its writes, so experts may change places. Raises ChipLost when a chip was lost
        meanwhile; the fleet's placement then has the written slots.
        """
        held = self.placement.padded(placement.slots)
        try:
            for layer in sorted({transfer.layer for transfer in transfers}):
                of_layer = [transfer for transfer in transfers if transfer.layer == layer]
                self._move(of_layer, held)
        except ChipLost:
            self._set_placement(replace(self.placement, expert_of_slot=held))
            raise
        self._set_placement(placement)

    def _move(self, transfers: Sequence[ExpertTransfer], held: Int64s) -> None:
        """Carry out one layer's transfers, and note in `held` the written slots."""
        layer = transfers[0].layer
        moves = [each for each in transfers if self._moves(each)]
        loads = [each for each in transfers if not self._moves(each)]
        slots = slots_to_send(moves)
        sent = self._tell(
            {chip: SendExperts(layer=layer, slots=own) for chip, own in slots.items()}
        )
        for commands, written in (
            (take_commands(moves, slots, sent), moves),
            (load_commands(loads), loads),
        ):
            try:
                self._tell(commands)
            finally:  # a chip that did not answer is lost; all others have written
                for each in written:
                    held[layer, each.chip, each.slot] = each.expert

    def send_kv(self, transfer: KvTransfer) -> None:
        """Copy a request's KV from one rank's chips to another's, each chip's heads to its peer.

        Raises ChipLost when a chip of either was lost; the receiver's blocks are then undefined.
        """
        kv = self.read_kv(transfer.from_rank, transfer.from_blocks)
        self.write_kv(transfer.to_rank, transfer.to_blocks, kv)

    def read_kv(self, rank: int, blocks: list[int]) -> tuple[KvBlocks, ...]:
        """The KV of a rank's blocks, of each chip that attends; raises ChipLost."""
        read = self._tell(dict.fromkeys(self._rank(rank), SendKv(blocks=blocks)))
        return tuple(all_of(KvBlocks, read).values())

    def write_kv(self, rank: int, blocks: list[int], kv: Sequence[KvBlocks]) -> None:
        """Write what a rank of this model has read, of as many chips or not, into a rank's blocks.

        Raises ChipLost when a chip was lost; the blocks are then undefined.
        """
        chips = self._rank(rank)
        shared = self.architecture.latent is not None
        divided = kv if len(kv) == len(chips) else divided_kv(kv, len(chips), shared=shared)
        self._tell(
            {
                chip: TakeKv(blocks=blocks, keys=each.keys, values=each.values)
                for chip, each in zip(chips, divided, strict=True)
            }
        )

    def _moves(self, transfer: ExpertTransfer) -> bool:
        """Whether weights go from chip to chip; mapped ones are in every chip's reach."""
        source, weights_dir = transfer.source_chip, self._weights_of[transfer.chip]
        same = source >= 0 and self._weights_of[source] == weights_dir
        return same and not self._maps_experts[weights_dir]

    def _set_placement(self, placement: ExpertPlacement) -> None:
        assert placement.slots <= self._slots, (placement.slots, self._slots)
        self.placement = placement
        self._exchange.set_placement(placement)

    def _tell(self, commands: Mapping[int, Command]) -> dict[int, Effect]:
        try:
            return self._ask(commands)
        except Interrupted as loss:
            raise ChipLost(loss.chips) from loss

    def kill(self, chip: int) -> None:
        """Lose `chip`: its process ends at once, without notice."""
        self._processes.kill(chip)

    def find_stopped(self) -> tuple[int, ...]:
        """Idle chips that have ended, or been stopped for the timeout."""
        gone, stopped = self._watch.look()
        self.silent.update(stopped)
        self._hung.update(stopped)
        return gone + stopped

    def hang(self, chip: int) -> None:
        """Make `chip` stop answering; its process stays."""
        with contextlib.suppress(ChipLost):  # it has ended by itself, and is as silent
            self._processes.channel.send(chip, Hang())
        self._hung.add(chip)

    @property
    def _attending(self) -> int:
        return self.architecture.attending_chips(self.tp)

    def _rank(self, rank: int) -> range:
        """The attending chips of a rank; the first one leads."""
        return range(rank * self.tp, rank * self.tp + self._attending)

    def cpu_s(self) -> float:
        """CPU seconds of all live chips' commands, without messages; raises ChipLost."""
        return sum(each.cpu_s for each in self.conditions())

    def conditions(self) -> list[Condition]:
        """CPU time and host memory of each live chip's process, in chip order; raises ChipLost."""
        replies = self._tell(dict.fromkeys(self.live_chips, ReportCondition()))
        return list(all_of(Condition, replies).values())

    def stop(self) -> None:
        """Stop the chips and Ray; idempotent, also with lost chips."""
        self._exchange.forget_chips()
        self._processes.stop()
