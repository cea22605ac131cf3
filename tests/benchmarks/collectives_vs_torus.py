"""All-gather and all-reduce on the switched fabric against the torus, and the vendor's claims.

AWS claims for NeuronSwitch against the torus up to 6 times lower latency of all-gather and 2 times
of all-reduce, without ranks and sizes. Here: 64 chips of a Trn2 UltraServer (4 x 4 x 4 torus)
against 64 of either Trn3 UltraServer, by generation of switches, each with its fastest algorithm.
Hop latency is unpublished and decides small sizes, so every assumption is shown; the torus also
with one algorithm for all sizes, as where software has no other.
"""

from dataclasses import replace

import numpy as np

from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.schedules import Algorithm
from emulator.specs.assumptions import with_assumptions
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from serving.commands.collective_claims import CLAIMS, claim_text, sizes_in_words

CHIPS = 64
SIZES = 2 ** np.arange(10, 31)  # 1 KiB to 1 GiB
GENERATIONS = ("v1-160-lane", "v2-320-lane", "v3-ualink")
NAMES = ("trn3-nl32x2", "trn3-nl72x2")
# What a hop of the torus takes (the vendor says 1 to 2 us of a ring's), and one of the switches.
HOPS = (
    ("hops of 1 us everywhere", 1_000, ["hop=ring-step"]),
    ("1 us in the torus, a pass through a switch chip", 1_000, ["hop=switch-chip"]),
    ("2 us in the torus, a pass through a switch chip", 2_000, ["hop=switch-chip"]),
)


def run() -> None:
    torus = system_by_name("trn2-ultraserver")
    switched = {
        f"{name[5:]} {generation[:2]}": with_assumptions(
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
        for what, torus_ns, readings in HOPS:
            print(f"  {what}")
            slow_ns = best_ns(with_hop_ns(torus, torus_ns), operation)
            for name, spec in switched.items():
                ratio = slow_ns / best_ns(with_assumptions(spec, readings), operation)
                print(f"    {name}, {claim_text(claim, SIZES.tolist(), ratio.tolist())}")
        for algorithm in (Algorithm.MESH, Algorithm.RDH, Algorithm.RING):
            alone_ns = by_one_ns(torus, operation, algorithm)
            for name, spec in switched.items():
                ratio = alone_ns / best_ns(spec, operation)
                reached = sizes_in_words(SIZES.tolist(), (ratio >= claim).tolist())
                where = f"reached at {reached}" if reached else "not reached"
                print(f"  {name}, the torus by {algorithm} alone: {where}")


def with_hop_ns(system: SystemSpec, hop_ns: float) -> SystemSpec:
    return replace(system, hop_ns=replace(system.hop_ns, value=hop_ns))


def best_ns(system: SystemSpec, operation: Operation) -> np.ndarray:
    """Time of each size, float64[sizes]."""
    model = CollectiveModel(system, np.arange(CHIPS)[None])
    return model.time(operation, 1.0 * SIZES[:, None]).duration_ns[:, 0]


def by_one_ns(system: SystemSpec, operation: Operation, algorithm: Algorithm) -> np.ndarray:
    model = CollectiveModel(system, np.arange(CHIPS)[None])
    return model.times_by_algorithm(operation, 1.0 * SIZES[:, None])[algorithm][:, 0]


if __name__ == "__main__":
    run()
