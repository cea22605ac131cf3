"""All-gather and all-reduce on the switched fabric against the torus, and the vendor's claims.

AWS says of NeuronSwitch against the torus: all-gather up to 6 times and all-reduce up to 2 times
lower latency; for which ranks and sizes it does not say. Here: 64 chips of a Trn2 UltraServer
(4 x 4 x 4 torus) against 64 chips of either Trn3 UltraServer, by each generation of switches, every
system by the algorithm that is the fastest for it; the same with hops twice as long; and the torus
by one algorithm for all sizes, as it is where software has no other.
"""

from dataclasses import replace

import numpy as np

from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.schedules import Algorithm
from emulator.specs.readings import with_readings
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name

CLAIMS = {Operation.ALL_GATHER: 6.0, Operation.ALL_REDUCE: 2.0}
CHIPS = 64
SIZES = 2.0 ** np.arange(10, 31)  # 1 KiB to 1 GiB
GENERATIONS = ("v1-160-lane", "v2-320-lane", "v3-ualink")
NAMES = ("trn3-nl32x2", "trn3-nl72x2")


def run() -> None:
    """Print how many times as long the torus takes, by size, and where that is the claim."""
    torus = system_by_name("trn2-ultraserver")
    switched = {
        f"{name[5:]} {generation[:2]}": with_readings(
            system_by_name(name), [f"switch-generation={generation}"]
        )
        for name in NAMES
        for generation in GENERATIONS
    }
    for operation, claim in CLAIMS.items():
        slow_ns = best_ns(torus, operation)
        ratios = {name: slow_ns / best_ns(spec, operation) for name, spec in switched.items()}
        print(f"{operation}: the torus takes so many times as long (claim: up to {claim:g})")
        print(f"{'size':>10}" + "".join(f"{name:>11}" for name in ratios))
        for row, size in enumerate(SIZES):
            cells = "".join(f"{ratio[row]:>11.2f}" for ratio in ratios.values())
            print(f"{size / 1024:>6,.0f} KiB{cells}")
        for name, ratio in ratios.items():
            print(f"  {name}: at most {ratio.max():.2f}, at {at(ratio)}; {where(ratio >= claim)}")
        _print_with_longer_hops(torus, switched, operation)
        for algorithm in (Algorithm.MESH, Algorithm.RDH, Algorithm.RING):
            alone_ns = by_one_ns(torus, operation, algorithm)
            for name, spec in switched.items():
                ratio = alone_ns / best_ns(spec, operation)
                reached = where(ratio >= claim)
                print(f"  {name}, the torus by {algorithm} alone: {reached}")


def _print_with_longer_hops(
    torus: SystemSpec, switched: dict[str, SystemSpec], operation: Operation
) -> None:
    """The same with the upper end of what the vendor says of a hop, 1 to 2 us."""
    slow_ns = best_ns(with_hop_ns(torus, 2_000), operation)
    for name, spec in switched.items():
        ratio = slow_ns / best_ns(with_hop_ns(spec, 2_000), operation)
        reached = where(ratio >= CLAIMS[operation])
        print(f"  {name}, hops of 2 us: at most {ratio.max():.2f}; {reached}")


def with_hop_ns(system: SystemSpec, hop_ns: float) -> SystemSpec:
    """The system with another latency per hop."""
    return replace(system, hop_ns=replace(system.hop_ns, value=hop_ns))


def best_ns(system: SystemSpec, operation: Operation) -> np.ndarray:
    """Time of each size, float64[sizes]."""
    model = CollectiveModel(system, np.arange(CHIPS)[None])
    return model.time(operation, SIZES[:, None]).duration_ns[:, 0]


def by_one_ns(system: SystemSpec, operation: Operation, algorithm: Algorithm) -> np.ndarray:
    """Time of each size by one algorithm, float64[sizes]."""
    model = CollectiveModel(system, np.arange(CHIPS)[None])
    return model.times_by_algorithm(operation, SIZES[:, None])[algorithm][:, 0]


def at(ratio: np.ndarray) -> str:
    """The size with the largest ratio."""
    return f"{SIZES[ratio.argmax()] / 1024:,.0f} KiB"


def where(reached: np.ndarray) -> str:
    """The sizes at which the claim is reached, in words: runs of neighbouring sizes."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], reached.astype(int), [0]])))
    if not len(edges):
        return "claim not reached"
    runs = (
        f"{SIZES[begin] / 1024:,.0f} to {SIZES[end - 1] / 1024:,.0f} KiB"
        for begin, end in edges.reshape(-1, 2)
    )
    return f"claim reached at {', '.join(runs)}"


if __name__ == "__main__":
    run()
