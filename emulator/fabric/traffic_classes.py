"""Order and completion of several transfers over the same links.

Trainium3's DMA engines have four classes of strict priority: a class moves what the ones above it
leave (AWS Neuron SDK docs, nki/guides/architecture/trainium3_arch.rst). Transfers of one class, and
all of them without classes, share a link in equal parts. No link idles while bytes wait.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure


class TrafficClass(IntEnum):
    """The most urgent first: steps wait for COLLECTIVE, requests for KV_TRANSFER."""

    COLLECTIVE = 0
    KV_TRANSFER = 1
    EXPERT_MOVE = 2
    CHECKPOINT = 3


_CLASSES: Final = {
    "trainium3": Figure(
        4,
        "classes",
        "AWS Neuron SDK docs, nki/guides/architecture/trainium3_arch.rst: 4-class DMA "
        "traffic shaping",
    )
}


def traffic_classes(chip: ChipSpec) -> int:
    """Number of classes of a chip's DMA engines; 1 without the feature."""
    figure = _CLASSES.get(chip.name)
    return 1 if figure is None else figure.count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """Bytes of a transfer over each link, float64[links], and its start and hops."""

    traffic: TrafficClass
    link_bytes: Float64s
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        if (self.link_bytes < 0).any() or self.latency_ns < 0:
            raise ConfigError("transfer", self.traffic.name, "bytes and latency from 0 on")


def completion_ns(
    transfers: list[Transfer], ns_per_byte: Float64s, *, classes: int = len(TrafficClass)
) -> Float64s:
    """Completion of each transfer, all starting now, float64[transfers].

    `ns_per_byte` is float64[links]. The last of `classes` includes those below it; ConfigError
    below 1. A transfer ends with its slowest link, plus its latency; without bytes it takes no
    time.
    """
    if classes < 1:
        raise ConfigError("classes", classes, "at least 1")
    if not transfers:
        return np.zeros(0)
    moved_ns = np.stack([each.link_bytes for each in transfers]) * ns_per_byte  # [transfers, links]
    rank = np.minimum([int(each.traffic) for each in transfers], classes - 1)
    above = rank[:, None] > rank  # [transfers, transfers]: the second goes before the first
    same = rank[:, None] == rank
    # Of its own class a transfer waits for as much of each other's bytes as it has itself.
    shared_ns = np.minimum(moved_ns[:, None], moved_ns[None])  # [transfers, transfers, links]
    done_ns = np.einsum("ij,jl->il", above.astype(float), moved_ns)
    done_ns += np.einsum("ij,ijl->il", same.astype(float), shared_ns)
    last_ns = np.where(moved_ns > 0, done_ns, 0.0).max(axis=1, initial=0.0)
    latency_ns = np.array([each.latency_ns for each in transfers])
    return np.where(last_ns > 0, last_ns + latency_ns, 0.0)
