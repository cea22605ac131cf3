"""Commands that write a layer's experts: from chip to chip, or from checkpoints. Pure."""

from collections.abc import Iterable, Mapping

import numpy as np

from emulator.chip.commands import Command, LoadExperts, TakeExperts
from emulator.chip.effects import Effect, ExpertWeights
from emulator.specs.placement import ExpertTransfer

SlotsByChip = Mapping[int, list[int]]


def slots_to_send(transfers: Iterable[ExpertTransfer]) -> dict[int, list[int]]:
    """The slots that each chip sends, once each for any number of receivers."""
    slots: dict[int, list[int]] = {}
    for each in transfers:
        of_chip = slots.setdefault(each.source_chip, [])
        if each.source_slot not in of_chip:
            of_chip.append(each.source_slot)
    return slots


def take_commands(
    transfers: Iterable[ExpertTransfer], slots: SlotsByChip, sent: Mapping[int, Effect]
) -> dict[int, Command]:
    """Have each chip take what others have `sent` of their `slots`."""
    commands: dict[int, Command] = {}
    for chip, arriving in _by_chip(transfers).items():
        parts = []
        for each in arriving:
            weights = sent[each.source_chip]
            assert isinstance(weights, ExpertWeights), weights
            row = slots[each.source_chip].index(each.source_slot)
            parts.append((weights.gate_up[row], weights.down[row], weights.biases[row]))
        gate_up, down, biases = (np.array(arrays) for arrays in zip(*parts, strict=True))
        commands[chip] = TakeExperts(
            layer=arriving[0].layer,
            slots=[each.slot for each in arriving],
            gate_up=gate_up,
            down=down,
            biases=biases,
        )
    return commands


def load_commands(transfers: Iterable[ExpertTransfer]) -> dict[int, Command]:
    """Have each chip read its experts from its checkpoint."""
    return {
        chip: LoadExperts(
            layer=arriving[0].layer,
            slots=[each.slot for each in arriving],
            experts=[each.expert for each in arriving],
        )
        for chip, arriving in _by_chip(transfers).items()
    }


def _by_chip(transfers: Iterable[ExpertTransfer]) -> dict[int, list[ExpertTransfer]]:
    by_chip: dict[int, list[ExpertTransfer]] = {}
    for each in transfers:
        by_chip.setdefault(each.chip, []).append(each)
    return by_chip
