"""The versions of the weights that an engine serves, and their roll-out.

A block (whole ranks that share experts) serves one version. A roll-out goes block by block: the
scheduler keeps new requests out, running ones end on the old weights, the chips read the new ones,
prefix caches are emptied, the block opens. Blocks that are down read when they come back. The next
block is any that does not serve the target, which may change at any time.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from emulator.errors import CheckpointError, ChipLost
from emulator.fleet import Fleet
from emulator.specs.seating import VACANT
from emulator.units import NS_PER_S
from serving.engine.engine_time import EngineTime
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.engine.scheduler_state import SchedulerState
from serving.engine.weights_identity import check_successor, weights_hash
from serving.wire.control_call import Refusal, RefusalCode, VersionReport
from serving.wire.machine_state import VersionState

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

_KEPT_VERSIONS = 32
"""Versions that are kept, and can be rolled back to; older ones out of service are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of the weights; the engine starts with number 1."""

    number: int
    weights_dir: Path
    digest: str
    note: str
    published_s: float
    failure: str = ""
    bytes_storage: int = 0
    read_ns: int = 0
    joules: float = 0.0

    @property
    def name(self) -> str:
        """Name in responses: the number, and the beginning of the weights' hash."""
        return f"v{self.number}-{self.digest}"


class _Step(StrEnum):
    EMPTYING = "emptying"
    READING = "reading"


class ModelVersions:
    """The version that each block of `live` serves, and the target of all.

    Invariants: at most one block is closed; a block's chips hold its version's weights, or will
    when they start; a block changes its version only without requests.
    """

    def __init__(
        self,
        weights_dir: Path,
        live: LiveMachine,
        *,
        time: EngineTime,
        ledger: Ledger,
    ) -> None:
        self._live = live
        self._time = time
        self._ledger = ledger
        machine = live.machine
        self._block_ranks = machine.block_positions // machine.partition.tp
        blocks = machine.partition.chips // machine.block_positions
        first = ModelVersion(
            number=1,
            weights_dir=weights_dir,
            digest=weights_hash(weights_dir),
            note="what the engine started with",
            published_s=time.now_s,
        )
        self._versions = {1: first}
        self._serve_order = [1]  # the last is the target; the one before is gone back to
        self._numbers = 1
        self._of_block = [1] * blocks
        self._moving: tuple[int, _Step] | None = None
        self._until_ns = 0
        self._renewed: set[int] = set()
        self._names: tuple[str, ...] = ()
        self._waits_for_requests = False

    @property
    def target(self) -> ModelVersion:
        """The version that every block serves, or will."""
        return self._versions[self._serve_order[-1]]

    @property
    def waiting_blocks(self) -> int:
        """Blocks that still serve another version than the target."""
        return sum(number != self.target.number for number in self._of_block)

    @property
    def closed_ranks(self) -> tuple[int, ...]:
        """Ranks without new requests, because their block is about to change its weights."""
        return tuple(self._ranks(self._moving[0])) if self._moving else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each rank's weights."""
        if not self._names:
            by_block = [self._versions[number].name for number in self._of_block]
            self._names = tuple(name for name in by_block for _ in range(self._block_ranks))
        return self._names

    def number_of(self, rank: int) -> int:
        """The version that a rank serves."""
        return self._of_block[rank // self._block_ranks]

    @property
    def renewed_ranks(self) -> tuple[int, ...]:
        """Ranks that got other weights in the last `advance`."""
        return tuple(sorted(self._renewed))

    @property
    def wants_step(self) -> bool:
        """Whether it needs a step to go on, without requests to cause one."""
        if self._moving is None:
            return bool(self.waiting_blocks)
        return self._moving[1] is _Step.EMPTYING and not self._waits_for_requests

    @property
    def is_reading(self) -> bool:
        """Whether a block reads weights, and opens once time has passed."""
        return self._moving is not None and self._moving[1] is _Step.READING

    def publish(self, weights_dir: str, note: str) -> VersionReport | Refusal:
        """Make another checkpoint the target; the same one again changes nothing."""
        directory = Path(weights_dir).absolute()
        try:
            check_successor(directory, self._versions[self._serve_order[-1]].weights_dir)
            digest = weights_hash(directory)
        except CheckpointError as error:
            return Refusal(code=RefusalCode.PRECONDITION, message=str(error))
        if digest == self.target.digest:
            return self._report()
        self._numbers += 1
        self._versions[self._numbers] = ModelVersion(
            number=self._numbers,
            weights_dir=directory,
            digest=digest,
            note=note,
            published_s=self._time.now_s,
        )
        self._serve_order.append(self._numbers)
        self._forget_old()
        logger.info("version %s of the weights: %s", self.target.name, directory)
        return self._report()

    def roll_back(self) -> VersionReport | Refusal:
        """Make the version before the target again."""
        if len(self._serve_order) < 2:
            words = f"version {self.target.number} has none before it that could be served again"
            return Refusal(code=RefusalCode.PRECONDITION, message=words)
        before = self._versions[self._serve_order[-2]]
        try:
            self._check_unchanged(before)
        except CheckpointError as error:
            return Refusal(code=RefusalCode.PRECONDITION, message=str(error))
        self._serve_order.pop()
        logger.info("back to version %s of the weights", self.target.name)
        return self._report()

    def _report(self) -> VersionReport:
        return VersionReport(
            version=self.target.number,
            weights=self.target.name,
            waiting_blocks=self.waiting_blocks,
        )

    def _forget_old(self) -> None:
        used = {*self._of_block, *self._serve_order[-_KEPT_VERSIONS:]}
        self._serve_order = self._serve_order[-_KEPT_VERSIONS:]
        old = sorted(self._versions.keys() - used)
        for number in old[: max(0, len(self._versions) - _KEPT_VERSIONS)]:
            del self._versions[number]

    def advance(self, heard: SchedulerState) -> int:
        """Go on before a step; returns the machine's stall in ns, when no block serves."""
        self._waits_for_requests = False
        self._renewed = set()
        self._renew_blocks_down()
        held_ns = 0
        match self._moving:
            case None:
                self._begin()
            case (block, _Step.EMPTYING) if self._of_block[block] == self.target.number:
                self._moving = None  # another target came meanwhile
                self._begin()
            case (block, _Step.EMPTYING):
                held_ns = self._read_when_empty(block, heard)
        if self._moving and self._moving[1] is _Step.READING:
            left_ns = max(0, self._until_ns - self._time.now_ns)
            if left_ns and not self._time.passes and not heard.has_requests:
                held_ns += left_ns  # nothing else will let the time pass
                left_ns = 0
            if not left_ns:
                self._moving = None
                self._begin()
        return held_ns

    def _begin(self) -> None:
        """Close the next block that serves another version."""
        for block, number in enumerate(self._of_block):
            if number != self.target.number:
                self._moving = (block, _Step.EMPTYING)
                return

    def _renew_blocks_down(self) -> None:
        """Renew blocks without a rank that is up, and so without requests, at once."""
        up = self._live.machine.ranks_up
        for block, number in enumerate(self._of_block):
            if number != self.target.number and not up[self._ranks(block)].any():
                if self._moving and self._moving[0] == block:
                    self._moving = None
                self._renew(block)

    def _read_when_empty(self, block: int, heard: SchedulerState) -> int:
        """Let an empty block's chips read; returns the stall in ns if no other block serves."""
        ranks = self._ranks(block)
        if not set(ranks) <= set(heard.closed_ranks):
            return 0  # the scheduler has yet to hear of it
        if any(not heard.rank_states[rank].is_empty for rank in ranks):
            self._waits_for_requests = True
            return 0
        duration_ns = self._renew(block)
        up = self._live.machine.ranks_up.copy()
        up[ranks] = False
        self._moving = (block, _Step.READING)
        self._until_ns = self._time.now_ns + (duration_ns if up.any() else 0)
        return 0 if up.any() else duration_ns

    def _renew(self, block: int) -> int:
        """Load the target's weights on the block's chips; returns the duration in ns."""
        version, machine = self.target, self._live.machine
        size = machine.block_positions
        positions = range(block * size, (block + 1) * size)
        cost = machine.renewal(positions)
        try:
            self._load(positions, version)
        except CheckpointError as error:
            self._give_up(version, str(error), instead=self._of_block[block])
            return 0
        seated = int(machine.chips_up[positions.start : positions.stop].sum())
        idle_joules = cost.idle_joules(machine.system, chips=seated)
        seats = machine.seating.chip_of_position[positions.start : positions.stop]
        self._ledger.charge(cost.joules, seats[seats != VACANT].tolist())
        self._versions[version.number] = replace(
            version,
            bytes_storage=version.bytes_storage + cost.bytes_storage,
            read_ns=version.read_ns + cost.duration_ns,
            joules=version.joules + cost.joules + idle_joules,
        )
        self._of_block[block] = version.number
        self._names = ()
        self._renewed.update(self._ranks(block))
        return cost.duration_ns

    def check_readable(self) -> None:
        """Raise CheckpointError unless the served weights are still where they were read."""
        for number in sorted(set(self._of_block)):
            self._check_unchanged(self._versions[number])

    def _check_unchanged(self, version: ModelVersion) -> None:
        if weights_hash(version.weights_dir) != version.digest:
            words = f"{version.weights_dir}: no longer holds the weights of version"
            raise CheckpointError(f"{words} {version.number}")

    def reread(self) -> None:
        """Read every chip's weights from the checkpoint again."""
        size = self._live.machine.block_positions
        for block, number in enumerate(self._of_block):
            self._load(range(block * size, (block + 1) * size), self._versions[number])

    def _load(self, positions: Sequence[int], version: ModelVersion) -> None:
        tokens = self._live.tokens
        if not isinstance(tokens, Fleet):
            return
        try:
            tokens.renew(positions, version.weights_dir)
        except ChipLost as loss:  # what takes their seats reads the same version
            self._live.meet(loss.chips)

    def _give_up(self, version: ModelVersion, reason: str, *, instead: int) -> None:
        """Withdraw a version that chips cannot read; blocks that have it go back."""
        logger.warning("version %s of the weights is given up: %s", version.name, reason)
        self._versions[version.number] = replace(version, failure=reason)
        self._serve_order.remove(version.number)
        self._serve_order = self._serve_order or [instead]

    def _ranks(self, block: int) -> list[int]:
        return list(range(block * self._block_ranks, (block + 1) * self._block_ranks))

    def states(self) -> tuple[VersionState, ...]:
        """All kept versions, by number."""
        return tuple(
            VersionState(
                number=number,
                weights=version.name,
                weights_dir=str(version.weights_dir),
                note=version.note,
                published_emulated_s=version.published_s,
                target=number == self.target.number,
                ranks=self._block_ranks * self._of_block.count(number),
                failure=version.failure,
                bytes_storage=version.bytes_storage,
                read_s=version.read_ns / NS_PER_S,
                joules=version.joules,
            )
            for number, version in sorted(self._versions.items())
        )
