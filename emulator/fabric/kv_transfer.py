"""Transfer of keys and values from prefilling to decoding chips."""

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.specs.model import ModelSpec
from emulator.specs.system import SystemSpec


def kv_transfer_ns(
    system: SystemSpec, *, bytes_per_request: float, from_chips: Int64s, to_chips: Int64s
) -> float:
    """Time of one request's keys and values from one rank's chips to another's; 0 without bytes.

    `from_chips` and `to_chips` each divide the heads evenly, in order; the common part of two goes
    straight between them. Raises ConfigError for a negative size, no chips, chips in both, or chips
    outside the system.
    """
    if bytes_per_request < 0:
        raise ConfigError("bytes_per_request", bytes_per_request, "0 or more")
    for field, pool in (("from_chips", from_chips), ("to_chips", to_chips)):
        if not len(pool) or pool.min() < 0 or pool.max() >= system.chips.count:
            expected = f"chips 0 to {system.chips.count - 1} of {system.name}"
            raise ConfigError(field, pool.tolist(), expected)
    both = np.concatenate([from_chips, to_chips])
    if len(np.unique(both)) != len(both):
        raise ConfigError("to_chips", to_chips.tolist(), "other chips than from_chips")
    if bytes_per_request == 0:
        return 0.0
    senders = len(from_chips)
    payload = np.zeros((len(both), len(both)))
    payload[:senders, senders:] = bytes_per_request * _common_part(senders, len(to_chips))
    return transfer_ns(AllToAll(system, len(both), physical=both), payload)


def transfer_ns(fabric: AllToAll, payload_bytes: Float64s) -> float:
    """Time of payload_bytes[sender, receiver], some of them, on links that are idle.

    Raises ValueError for bytes without a path.
    """
    busy_ns = fabric.exchange(payload_bytes).link_busy_ns.max()
    return float(busy_ns + fabric.latency_ns()[payload_bytes > 0].max())


def prompt_kv_bytes(model: ModelSpec, prompt_tokens: Int64s) -> Int64s:
    """Of each prompt: all of it in full-attention layers, the window's part in the others."""
    in_window = np.minimum(prompt_tokens, model.window_tokens)
    layer_tokens = model.full_layers * prompt_tokens + model.window_layers * in_window
    total: Int64s = layer_tokens * model.kv_bytes_per_token_layer
    return total


def prompt_transfer_ns(
    system: SystemSpec, model: ModelSpec, *, prompt_tokens: int, from_chips: int, to_chips: int
) -> float:
    """From the end of a prompt on a rank of `from_chips` until one of `to_chips` can decode it.

    Assumed: links are idle, and the ranks lie half a unit apart (the other rack of two, the middle
    of a torus), in a cluster in two units. Raises ConfigError where they do not fit.
    """
    unit_chips = system.chips.count // system.units
    if system.units > 1:
        first = -(-from_chips // unit_chips) * unit_chips  # the next unit that is free
    else:
        first = min(max(unit_chips // 2, from_chips), unit_chips - to_chips)
    return kv_transfer_ns(
        system,
        bytes_per_request=float(prompt_kv_bytes(model, np.array(prompt_tokens))),
        from_chips=np.arange(from_chips, dtype=np.int64),
        to_chips=first + np.arange(to_chips, dtype=np.int64),
    )


def layered_ready_ns(
    *, begin_ns: int, end_ns: int, free_ns: int, transfer_ns: int, layers: int
) -> int:
    """When KV can be read whose layers go one by one as a step, from begin to end, computes them.

    The way is taken until `free_ns`; `transfer_ns` is the time for all layers. Assumed: each layer
    takes an equal part of the step, and of the transfer; the step that reads them takes longer than
    the transfer of one, so that the last may come while it computes those before.
    """
    first_ns = begin_ns + -(-(end_ns - begin_ns) // layers)
    # Layers come and go at even rates, so that the links wait for the last layer or for none.
    return max(max(first_ns, free_ns) + transfer_ns * (layers - 1) // layers, end_ns)


def _common_part(senders: int, receivers: int) -> Float64s:
    """The part of all heads that each sender has and each receiver needs: [senders, receivers]."""
    sent, taken = np.arange(senders + 1) / senders, np.arange(receivers + 1) / receivers
    begin = np.maximum(sent[:-1, None], taken[None, :-1])
    end = np.minimum(sent[1:, None], taken[None, 1:])
    # Ends that meet may differ in their last bits; less than a part in a million is no head.
    return np.where(end - begin > 1e-9, end - begin, 0.0)
