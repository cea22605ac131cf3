"""How many requests of each traffic class keep their own target in a simulated run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.arrays import Int64s
from loadgen.measures.slo import Slo
from serving.simulator import Run
from serving.traffic.serving_run import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """A class's requests, and the shares that keep its target in TTFT, TPOT, and both."""

    name: str
    requests: int
    completed_requests: int
    slo: str | None
    kept: tuple[float, float, float] | None


def class_shares(
    run: Run, of_class: Int64s, targets: Mapping[str, Slo | None]
) -> tuple[ClassShares, ...]:
    """Of each class; `of_class` numbers those of `targets`, [requests].

    The shares of a run that was stopped are not known.
    """
    stopped = run.served.ending is Ending.STOPPED
    found = []
    for number, (name, slo) in enumerate(targets.items()):
        of_it = of_class == number
        kept = None
        if slo is not None and of_it.any() and not stopped:
            kept = replace(run, judged=of_it).shares(slo)
        found.append(
            ClassShares(
                name=name,
                requests=int(of_it.sum()),
                completed_requests=int(run.served.finished[of_it].sum()),
                slo=None if slo is None else slo.words,
                kept=kept,
            )
        )
    return tuple(found)
