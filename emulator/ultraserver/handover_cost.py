"""Cost of handing chips over: experts moved over links, weights read, checkpoints written.

Each tray reads and writes its own drives, large enough, over its host's link, which its chips share
(see recovery_time for omissions). A checkpoint ends with its last tray.

Joules are those of moving the bytes, above idle (`idle_joules`). Assumed: a bit over a host's link
costs the same as over a chip's links, one read from or written to HBM the same as a streamed one;
drives and hosts draw only the system's other watts.
"""

import math
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.kv_transfer import prompt_kv_bytes, prompt_transfer_ns, transfer_ns
from emulator.faults.recovery_time import RecoveryRates, slowest_tray_ns
from emulator.specs.model import ModelSpec
from emulator.specs.system import SystemSpec
from emulator.specs.work_energy import PICO, work_energy_of
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.units import BITS_PER_BYTE, NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverCost:
    """Bytes over chips' links and storage, emulated nanoseconds, joules above idle."""

    bytes_links: int = 0
    bytes_storage: int = 0
    duration_ns: int = 0
    joules: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bytes_links", "bytes_storage", "duration_ns", "joules"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "at least 0")

    def __add__(self, other: "HandoverCost") -> "HandoverCost":
        return HandoverCost(
            bytes_links=self.bytes_links + other.bytes_links,
            bytes_storage=self.bytes_storage + other.bytes_storage,
            duration_ns=self.duration_ns + other.duration_ns,
            joules=self.joules + other.joules,
        )

    def idle_joules(self, system: SystemSpec, *, chips: int) -> float:
        """Idle joules of `chips` chips meanwhile."""
        return chips * system.chip.idle_watts.value * self.duration_ns / NS_PER_S


def experts_moved(system: SystemSpec, sent_bytes: Float64s, all_to_all: AllToAll) -> HandoverCost:
    """Cost of weights over the chips' links: sent_bytes[sender, receiver], all at once.

    Serving traffic is not counted. Raises ValueError for chips without a path.
    """
    return _over_links(system, sent_bytes, all_to_all.exchange(sent_bytes).duration_ns)


def kv_sent(layout: MachineLayout, *, from_rank: int, to_rank: int, tokens: int) -> HandoverCost:
    """Cost of one request's keys and values of `tokens` from rank to rank, on idle links.

    Each chip sends those of its heads. Raises ValueError for chips without a path.
    """
    tp, chips = layout.partition.tp, layout.partition.chips
    sent_bytes = np.zeros((chips, chips))
    share = float(prompt_kv_bytes(layout.model, np.array(tokens))) / tp
    for place in range(tp):
        sent_bytes[from_rank * tp + place, to_rank * tp + place] = share
    return _over_links(layout.system, sent_bytes, transfer_ns(layout.all_to_all, sent_bytes))


def kv_between_engines(
    system: SystemSpec, model: ModelSpec, *, tokens: int, from_chips: int, to_chips: int
) -> tuple[HandoverCost, HandoverCost]:
    """What the rank that sends a prompt's keys and values, and the one of another engine that takes
    them, each bear of it; joules are in sum those of `kv_sent`.

    Each counts all bytes and the whole time. Raises ConfigError where the ranks do not fit.
    """
    moved = int(prompt_kv_bytes(model, np.array(tokens)))
    duration_ns = prompt_transfer_ns(
        system, model, prompt_tokens=tokens, from_chips=from_chips, to_chips=to_chips
    )
    energy = work_energy_of(system.chip)
    sent, received = (
        HandoverCost(
            bytes_links=moved,
            duration_ns=math.ceil(duration_ns),
            joules=BITS_PER_BYTE * moved * PICO * bit_picojoules,
        )
        for bit_picojoules in (energy.link.value + energy.hbm.value, energy.hbm.value)
    )
    return sent, received


def _over_links(system: SystemSpec, sent_bytes: Float64s, duration_ns: float) -> HandoverCost:
    moved = float(sent_bytes.sum() - np.trace(sent_bytes))
    energy = work_energy_of(system.chip)
    bit_joules = PICO * (energy.link.value + 2 * energy.hbm.value)  # read there, written here
    return HandoverCost(
        bytes_links=math.ceil(moved),
        duration_ns=math.ceil(duration_ns),
        joules=BITS_PER_BYTE * moved * bit_joules,
    )


def weights_read(
    system: SystemSpec,
    physical: Int64s,
    chip_bytes: Float64s | Int64s,
    rates: RecoveryRates | None = None,
) -> HandoverCost:
    """Cost of reading chip_bytes [chips] from drives into HBM of chips `physical` [chips].

    Raises ConfigError for a chip outside the system, or negative bytes.
    """
    rates = rates or RecoveryRates()
    return _over_storage(system, physical, chip_bytes, rates.read_bytes_per_s)


def checkpoint_write(
    system: SystemSpec,
    physical: Int64s,
    chip_bytes: Float64s | Int64s,
    rates: RecoveryRates | None = None,
) -> HandoverCost:
    """Cost of writing chip_bytes [chips] from HBM of chips `physical` [chips] to drives.

    For training, `TrainingCost.checkpoint_bytes`. Raises ConfigError as `weights_read`.
    """
    rates = rates or RecoveryRates()
    return _over_storage(system, physical, chip_bytes, rates.write_bytes_per_s)


def weights_stowed(
    system: SystemSpec,
    physical: Int64s,
    chip_bytes: Float64s | Int64s,
    rates: RecoveryRates | None = None,
) -> HandoverCost:
    """Cost of copying chip_bytes [chips] between HBM and hosts; ConfigError as `weights_read`."""
    rates = rates or RecoveryRates()
    return _over_storage(system, physical, chip_bytes, rates.host_link_bytes_per_s.value)


def _over_storage(
    system: SystemSpec, physical: Int64s, chip_bytes: Float64s | Int64s, bytes_per_s: float
) -> HandoverCost:
    chips, moved = np.asarray(physical), np.asarray(chip_bytes, dtype=np.float64)
    if chips.shape != moved.shape or chips.ndim != 1:
        raise ConfigError("chip_bytes", moved.shape, f"one for each {chips}")
    if ((chips < 0) | (chips >= system.chips.count)).any():
        raise ConfigError("chips", chips.tolist(), f"chips of {system.chips.count}")
    if (moved < 0).any():
        raise ConfigError("chip_bytes", float(moved.min()), "at least 0")
    total = float(moved.sum())
    energy = work_energy_of(system.chip)
    return HandoverCost(
        bytes_storage=math.ceil(total),
        duration_ns=slowest_tray_ns(system, chips, moved, bytes_per_s),
        joules=BITS_PER_BYTE * total * PICO * (energy.link.value + energy.hbm.value),
    )
