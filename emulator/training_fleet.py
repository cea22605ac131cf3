"""Live training chips: start, step, evaluate, read their state.

Every chip has all dense weights and its own sequences; experts are spread evenly. A job that loses
a chip starts another fleet from its saved state.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.actors.chip_processes import ChipProcesses
from emulator.arrays import Float32s, Int32s
from emulator.chip.commands import Command
from emulator.chip.effects import ChipFailed, Effect
from emulator.chip.training_commands import BeginTraining, SendTrainingState, TrainingCommand
from emulator.chip.training_effects import TrainingEffect, TrainingStateRead
from emulator.chip.training_share import TrainingShare
from emulator.chip.training_weights import FIRST, MASTER, SECOND
from emulator.compute.adamw import AdamWSettings
from emulator.compute.architecture import Architecture
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import (
    Parameters,
    check_trainable,
    dense_layout,
    dense_tensors,
    expert_layout,
    expert_tensors,
)
from emulator.errors import ChipLost, ChipSilent
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.training_lockstep import Optimization, TrainingLockstep, TrainingResult

logger = logging.getLogger(__name__)


SILENCE_TIMEOUT_S = 300.0
"""Longest silence of all chips: a micro-batch's layer takes a second at most on a core of its own
(assumed: room for a job at low priority beside a busy server)."""

Micro = Sequence[tuple[Int32s, Int32s]]
"""A micro-batch: tokens and targets, [sequences, length] each, of every chip in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingState:
    """Learned state, independent of the number of chips.

    `values`: FP32 weights and two moments of each parameter, under "master.", "first." or "second."
    and its name; experts by id. `weights`: under Hugging Face's names and shapes.
    """

    values: dict[str, Float32s]
    weights: dict[str, Float32s]


class TrainingFleet:
    """Chips 0 to `chips` - 1, which train the model in `weights_dir`.

    Args:
        weights_dir: Hugging Face checkpoint; its config.json shapes the model.
        state_file: `TrainingState.values` as a safetensors file, saved after `steps` steps; None
            begins from the checkpoint's weights.
        ray_address: a running Ray cluster to join; None starts a private one.

    Raises:
        CheckpointError: the checkpoint cannot be computed; before any process is started.
        ChannelError: from `start`, when a chip does not start.
        ChipLost: when chips are gone, or failed; the fleet can then only be stopped.
    """

    def __init__(
        self,
        *,
        weights_dir: Path,
        chips: int,
        precision: Precision,
        optimizer: AdamWSettings,
        state_file: Path | None = None,
        steps: int = 0,
        ray_address: str | None = None,
    ) -> None:
        self.architecture: Architecture = check_trainable(weights_dir)
        self.chips = chips
        arch = self.architecture
        self._placement = ExpertPlacement.even(
            layers=arch.layers, experts=arch.experts, chips=chips, ep=chips
        )
        self._experts = ExpertMap(self._placement)
        self._weights_dir = weights_dir
        self._precision = precision
        self._optimizer = optimizer
        self._state_file = state_file
        self._steps = steps
        self._processes = ChipProcesses(ray_address)

    def start(self) -> None:
        """Start Ray and the chips, and wait until each has loaded its share."""
        try:
            self._processes.open()
            shares = {chip: self._share(chip) for chip in range(self.chips)}
            self._processes.start(shares, chips=self.chips)
        except BaseException:
            self.stop()
            raise

    def _share(self, chip: int) -> TrainingShare:
        return TrainingShare(
            weights_dir=str(self._weights_dir),
            experts=self._experts_of(chip),
            precision=self._precision,
            optimizer=self._optimizer,
            state_file="" if self._state_file is None else str(self._state_file),
            steps=self._steps,
        )

    def _experts_of(self, chip: int) -> list[list[int]]:
        """The experts of each layer that `chip` owns; the last chips may have one fewer."""
        slots = self._placement.expert_of_slot[:, chip].tolist()
        return [[expert for expert in layer if expert != EMPTY] for layer in slots]

    def step(self, micros: Sequence[Micro], optimization: Optimization) -> TrainingResult:
        """Take one step of the optimizer on all `micros` together."""
        return self._drive(micros, optimization)

    def evaluate(self, micros: Sequence[Micro]) -> TrainingResult:
        """The loss of `micros`, without an update."""
        return self._drive(micros, None)

    def _drive(self, micros: Sequence[Micro], optimization: Optimization | None) -> TrainingResult:
        asked = sum(int((targets >= 0).sum()) for micro in micros for _, targets in micro)
        begins = [
            {
                chip: BeginTraining(tokens=tokens, targets=targets, loss_scale=1 / max(1, asked))
                for chip, (tokens, targets) in enumerate(micro)
            }
            for micro in micros
        ]
        lockstep = TrainingLockstep(begins, self._experts, optimization)
        commands = lockstep.start()
        while commands:
            commands = lockstep.advance(self._ask(commands))
        return lockstep.result()

    def state(self) -> TrainingState:
        """Read weights and moments from the chips."""
        arch = self.architecture
        read = self._ask({c: SendTrainingState(dense=c == 0) for c in range(self.chips)})
        parts = {chip: each for chip, each in read.items() if isinstance(each, TrainingStateRead)}
        values: dict[str, Float32s] = {}
        weights: dict[str, Float32s] = {}
        for kind, of_dense, of_experts in (
            (MASTER, "dense", "experts"),
            (FIRST, "dense_first", "experts_first"),
            (SECOND, "dense_second", "experts_second"),
        ):
            dense = Parameters(dense_layout(arch), getattr(parts[0], of_dense))
            values |= {f"{kind}.{name}": dense[name] for name in dense}
            if kind == MASTER:
                weights |= dense_tensors(dense, arch)
            shares = []
            for chip in range(self.chips):
                owned = self._experts_of(chip)
                layout = expert_layout(arch, [len(layer) for layer in owned])
                share = Parameters(layout, getattr(parts[chip], of_experts))
                shares.append(share)
                if kind == MASTER:
                    weights |= expert_tensors(share, arch, owned)
            for name in shares[0]:  # the even placement gives chips their experts in order
                values[f"{kind}.{name}"] = np.concatenate([share[name] for share in shares])
        return TrainingState(values=values, weights=weights)

    def _ask(
        self, commands: Mapping[int, Command | TrainingCommand]
    ) -> dict[int, Effect | TrainingEffect]:
        """Send every command and wait for each answer; raises ChipLost."""
        channel = self._processes.channel
        replies: dict[int, Effect | TrainingEffect] = {}
        try:
            channel.send_all(commands)
            for chip, reply in channel.receive(commands, SILENCE_TIMEOUT_S):
                if isinstance(reply, ChipFailed):
                    logger.error("chip %d failed: %s", chip, reply.reason)
                    raise ChipLost((chip,), reply.reason.strip().splitlines()[-1])
                replies[chip] = reply  # type: ignore[assignment]
        except ChipSilent as error:
            raise ChipLost(error.chips, str(error)) from error
        return replies

    def kill(self, chip: int) -> None:
        """Lose `chip`: its process ends at once, without notice."""
        self._processes.kill(chip)

    def stop(self) -> None:
        """Stop the chips and Ray; idempotent, also with lost chips."""
        self._processes.stop()
