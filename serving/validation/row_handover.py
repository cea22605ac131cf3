"""How long a prompt's keys and values take from the GPUs that prefill to those that decode."""

from functools import lru_cache

import numpy as np

from emulator.model import SystemSpec, kv_transfer_ns
from emulator.units import NS_PER_S
from serving.steady_state.kv_handover import prompt_kv_bytes
from serving.validation.row_deployment import Deployment


def handover_s(deployment: Deployment) -> float:
    """Seconds between a rank of each pool on idle links; none where the pools are one.

    Pools that do not fit one scale-up domain together are in two, over the network cards.
    """
    if not deployment.disaggregated:
        return 0.0
    system = max(
        (deployment.prefill.system, deployment.decode.system), key=lambda each: each.chips.count
    )
    kv_bytes = prompt_kv_bytes(deployment.model, round(deployment.prompt_tokens))
    return _transfer_s(
        system,
        kv_bytes,
        deployment.prefill.partition.tp,
        deployment.decode.partition.tp,
        deployment.chips > system.chips.count,
    )


@lru_cache(maxsize=256)
def _transfer_s(
    system: SystemSpec, kv_bytes: int, from_chips: int, to_chips: int, apart: bool
) -> float:
    first = 0 if apart else from_chips
    taken_ns = kv_transfer_ns(
        system,
        bytes_per_request=kv_bytes,
        from_chips=np.arange(from_chips, dtype=np.int64),
        to_chips=first + np.arange(to_chips, dtype=np.int64),
        cross_unit=apart,
    )
    return taken_ns / NS_PER_S
