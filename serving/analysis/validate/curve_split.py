"""Splits configurations into a fitted and a held-out half, alike in kind, whole curves together.

A curve is a configuration at several numbers of users. Minimisation (Pocock and Simon 1975):
configurations in random order, each to the side where its like are rarer; those with and without
speculation apart.
"""

from collections.abc import Iterable

import numpy as np

from serving.analysis.validate.measured_row import Configuration

SEEDS = (0, 1, 2, 3, 4)


def fitted_half(configurations: Iterable[Configuration], *, seed: int) -> frozenset[str]:
    """Fingerprints of the fitted half; depends on the set of configurations alone."""
    known = {each.fingerprint: each for each in configurations}
    chosen: set[str] = set()
    for speculative in (False, True):
        some = {key: each for key, each in known.items() if each.speculative is speculative}
        chosen |= _half(some, seed)
    return frozenset(chosen)


def _half(known: dict[str, Configuration], seed: int) -> set[str]:
    rng = np.random.default_rng(seed)
    keys = sorted(known)
    lead: dict[tuple[str, ...], int] = {}  # configurations fitted, less those held out
    chosen: set[str] = set()
    for place in rng.permutation(len(keys)).tolist():
        key = keys[place]
        likes = _likes(known[key])
        lean = int(sum(np.sign(lead.get(like, 0)) for like in likes))
        fitted = bool(rng.random() < 0.5) if lean == 0 else lean < 0
        if fitted:
            chosen.add(key)
        for like in likes:
            lead[like] = lead.get(like, 0) + (1 if fitted else -1)
    return chosen


def _likes(configuration: Configuration) -> tuple[tuple[str, ...], ...]:
    """Properties to balance between the halves."""
    framework, day = configuration.framework, configuration.day
    maker = configuration.hardware
    return (
        ("machine", maker),
        ("workload", framework, _family(maker), configuration.workload),
        ("quarter", framework, _family(maker), str(day.year), str((day.month - 1) // 3)),
    )


def _family(hardware: str) -> str:
    """Frameworks of AMD's GPUs are other builds than those of NVIDIA's."""
    return "rocm" if hardware.startswith("mi") else ""
