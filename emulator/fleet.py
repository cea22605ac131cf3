"""The door to live chips: start them, let them compute a step, stop them.

A step is driven layer by layer: every rank's tokens are dispatched to the experts' chips and come
back, all ranks together. What a step costs in emulated time is not decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.actors.channel import Hub
from emulator.actors.codec import Message
from emulator.actors.ray_session import RaySession
from emulator.chip.commands import BeginStep, Stop
from emulator.chip.effects import Dispatch, ExpertRows, Failed, Ready, StepDone
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_weights
from emulator.errors import ChannelError
from emulator.specs.step import RankOutput, RankStep
from emulator.ultraserver.exchange import ExpertMap, finish_exchange, plan_exchange

START_TIMEOUT_S = 300.0
STEP_TIMEOUT_S = 120.0
"""A chip silent for this long is reported lost; a step of a tray takes milliseconds."""

NO_BITMASK: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMemory:
    """Host memory of one chip's process: proportional and resident set size."""

    pss_bytes: int
    rss_bytes: int


class Fleet:
    """Chips 0..chips-1, each a rank's attention replica and a share of the experts.

    Args:
        weights_dir: Hugging Face checkpoint that computes the tokens.
        chips: number of chips; also the data-parallel ranks.
        kv_blocks, block_tokens: the KV pool of each rank.

    Raises:
        CheckpointError: the checkpoint cannot be computed; before any process is started.
        ChannelError: from `start` and `step`, when a chip fails or is silent.
    """

    def __init__(self, *, weights_dir: Path, chips: int, kv_blocks: int, block_tokens: int) -> None:
        self.architecture: Architecture = check_weights(weights_dir)
        self.chips = chips
        self._experts = ExpertMap.contiguous(self.architecture.experts, chips)
        self._weights_dir = weights_dir
        self._kv_blocks = kv_blocks
        self._block_tokens = block_tokens
        self._ray = RaySession()
        self._hub: Hub | None = None
        self._actors: list[Any] = []

    def start(self) -> None:
        """Start Ray and the chips, and wait until each has loaded its shard."""
        self._hub = Hub()
        try:
            self._ray.start()
            for chip in range(self.chips):
                self._actors.append(
                    self._ray.start_chip(
                        chip=chip,
                        address=self._hub.address,
                        key=self._hub.key,
                        weights_dir=str(self._weights_dir),
                        experts=self._experts.experts_of(chip),
                        kv_blocks=self._kv_blocks,
                        block_tokens=self._block_tokens,
                    )
                )
            self._wait_loaded()
            self._hub.accept(self.chips, START_TIMEOUT_S)
            for _, message in self._hub.receive(self.chips, START_TIMEOUT_S):
                assert isinstance(message, Ready), message
        except BaseException:
            self.stop()
            raise

    def _wait_loaded(self) -> None:
        """Wait until every actor is made; Ray tells why one is not."""
        made = [actor.is_serving.remote() for actor in self._actors]
        try:
            serving = self._ray.get(made, START_TIMEOUT_S)
        except Exception as error:
            last_line = str(error).strip().splitlines()[-1]
            raise ChannelError(f"a chip did not start: {last_line}") from error
        if not all(serving):
            raise ChannelError(f"chip {serving.index(False)} stopped while it started")

    def step(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> dict[int, RankOutput]:
        """Compute one step of every rank in `steps`; returns the outputs by rank.

        `bitmasks` holds the grammar bitmask of ranks that have constrained requests.
        """
        replies = self._ask(
            {
                step.rank: BeginStep(step=step, grammar_bitmask=bitmasks.get(step.rank, NO_BITMASK))
                for step in steps
            }
        )
        outputs: dict[int, RankOutput] = {}
        while True:
            dispatches: dict[int, Dispatch] = {}
            for rank, reply in replies.items():
                if isinstance(reply, StepDone):
                    outputs[rank] = reply.output
                else:
                    assert isinstance(reply, Dispatch), reply
                    dispatches[rank] = reply
            if not dispatches:
                return outputs
            replies = self._exchange(dispatches)

    def _exchange(self, dispatches: dict[int, Dispatch]) -> dict[int, Message]:
        exchange = plan_exchange(dispatches, self._experts, self.chips)
        answers: dict[int, ExpertRows] = {}
        for chip, answer in self._ask(exchange.work).items():
            assert isinstance(answer, ExpertRows), answer
            answers[chip] = answer
        return self._ask(finish_exchange(exchange, answers))

    def _ask(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        assert self._hub is not None, "the fleet is not started"
        self._hub.send_all(messages)
        replies: dict[int, Message] = {}
        for chip, reply in self._hub.receive(len(messages), STEP_TIMEOUT_S):
            if isinstance(reply, Failed):
                raise ChannelError(f"chip {chip} failed: {reply.reason}")
            replies[chip] = reply
        return replies

    def memory(self) -> list[ChipMemory]:
        """Host memory of each chip's process, in chip order."""
        sizes = self._ray.get([actor.memory_bytes.remote() for actor in self._actors], 60.0)
        return [ChipMemory(pss_bytes=pss, rss_bytes=rss) for pss, rss in sizes]

    def cpu_s(self) -> float:
        """CPU seconds that all chips have computed, their messages not counted."""
        return float(sum(self._ray.get([actor.cpu_s.remote() for actor in self._actors], 60.0)))

    def check(self) -> None:
        """Raise ChannelError when a chip's process is gone or has stopped serving."""
        try:
            serving = self._ray.get([actor.is_serving.remote() for actor in self._actors], 30.0)
        except Exception as error:
            raise ChannelError(f"a chip does not answer: {error}") from error
        if not all(serving):
            raise ChannelError(f"chip {serving.index(False)} has stopped serving")

    def stop(self) -> None:
        """Stop the chips and Ray; idempotent, and never raises for a chip that is already gone."""
        hub, self._hub = self._hub, None
        if hub is not None:
            for chip in range(len(self._actors)):
                try:
                    hub.send(chip, Stop())
                except ChannelError:
                    continue
            hub.close()
        self._actors = []
        self._ray.stop()
