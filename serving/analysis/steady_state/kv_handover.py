"""How long the keys and values of a prompt take from the chips that made them to those that decode.

Where the pools lie is not settled by a plan. The two ranks are taken to be half a unit apart, which
is the other rack of two and the middle of a torus; in a cluster, in two units.
"""

import numpy as np

from emulator.fabric.kv_transfer import kv_transfer_ns
from emulator.specs.model import ModelSpec
from emulator.specs.system import SystemSpec


def prompt_kv_bytes(model: ModelSpec, prompt_tokens: int) -> int:
    """Of one prompt: all of it where a layer attends to everything, else what a window has."""
    in_window = min(prompt_tokens, model.window_tokens)
    layer_tokens = model.full_layers * prompt_tokens + model.window_layers * in_window
    return layer_tokens * model.kv_bytes_per_token_layer


def handover_ns(
    system: SystemSpec, model: ModelSpec, *, prompt_tokens: int, from_chips: int, to_chips: int
) -> float:
    """From the end of a prompt's prefill on a rank of `from_chips` until another of `to_chips` can
    decode it, on links without other traffic.

    Raises ConfigError where the two ranks do not fit beside each other.
    """
    unit_chips = system.chips.count // system.units
    if system.units > 1:
        first = -(-from_chips // unit_chips) * unit_chips  # the next unit that is free
    else:
        first = min(max(unit_chips // 2, from_chips), unit_chips - to_chips)
    return kv_transfer_ns(
        system,
        bytes_per_request=prompt_kv_bytes(model, prompt_tokens),
        from_chips=np.arange(from_chips, dtype=np.int64),
        to_chips=first + np.arange(to_chips, dtype=np.int64),
    )
