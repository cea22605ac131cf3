"""HBM by the categories of neuron-monitor and neuron-top, per logical core.

In the tools, constants are weights when a model infers, the scratchpad is for the model's internal
variables, and runtime memory is the rest: so weights are constants, KV and a training job's state
tensors, activations scratchpad, and collectives' buffers the runtime's. (The runtime's
out-of-memory table has other columns: emulator.memory.)

A core has the memory of the HBM stacks that it sees; two cores that see one stack (LNC=1) get half
each: the state does not say which of them asked for it.

Source: AWS Neuron SDK docs, neuron-monitor-user-guide.rst, memory_used; neuron-top-user-guide.rst.
"""

from collections import Counter
from functools import lru_cache
from typing import Final

from emulator.memory.lnc import CoreMap
from emulator.specs.hbm_usage import HbmUse, use_of
from serving.wire.machine_state import ChipState

CATEGORIES: Final = (
    "constants",
    "model_code",
    "model_shared_scratchpad",
    "runtime_memory",
    "tensors",
)
CATEGORY_OF_USE: Final = {
    HbmUse.WEIGHTS: "constants",
    HbmUse.KV: "tensors",
    HbmUse.ACTIVATIONS: "model_shared_scratchpad",
    HbmUse.COLLECTIVES: "runtime_memory",
    HbmUse.MICROCODE: "model_code",
    HbmUse.TRAINING: "tensors",
}
CategoryBytes = dict[str, int]


def category_of(owner: str) -> str:
    """Category of an owner such as "weights/experts"; raises ValueError for an unknown use."""
    return CATEGORY_OF_USE[use_of(owner)]


def core_bytes(chip: ChipState, cores: CoreMap) -> tuple[CategoryBytes, ...]:
    """Bytes by category of each logical core; they add up to the chip's."""
    shares = []
    for core in cores.cores:
        held = dict.fromkeys(CATEGORIES, 0)
        sharers = sorted((core.core, *core.shares_with))
        for stack in core.stacks:
            for category, count in _of_stack(tuple(chip.stacks[stack].owner_bytes.items())):
                share, rest = divmod(count, len(sharers))
                held[category] += share + (sharers.index(core.core) < rest)
        shares.append(held)
    return tuple(shares)


def chip_bytes(chip: ChipState) -> CategoryBytes:
    """Bytes by category of the whole chip."""
    held = dict.fromkeys(CATEGORIES, 0)
    for stack in chip.stacks:
        for category, count in _of_stack(tuple(stack.owner_bytes.items())):
            held[category] += count
    return held


@lru_cache(maxsize=4_096)  # most stacks hold the same, and a page has hundreds of them
def _of_stack(owner_bytes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    held: Counter[str] = Counter()
    for owner, count in owner_bytes:
        held[category_of(owner)] += count
    return tuple(held.items())


def added(parts: tuple[CategoryBytes, ...]) -> CategoryBytes:
    """Sums by category."""
    return {name: sum(part[name] for part in parts) for name in CATEGORIES}
