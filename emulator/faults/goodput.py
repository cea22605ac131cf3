"""Goodput of a training job: its share of useful time between failures, saves and restarts.

A job of many chips stops when one fails. It goes on from its newest checkpoint, on as many chips
(spares are there), and does again what came after it. Failures come independently, as in J. T.
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22
(2006): expected time of a segment of useful work is M exp(R / M) (exp((T + S) / M) - 1), with the
job's mean time between failures M, the restart R, the work T and the save S.
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.figure import Figure

CHIP_MTBF_HOURS: Final = Figure(
    54 * 24 * 16_384 / 419,
    "hours",
    "arithmetic: 54 days x 24 h x 16,384 H100 / 419 unexpected interruptions (The Llama 3 Herd of "
    "Models, arXiv 2407.21783, section 3.3.4); assumed for other chips",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Shares of the time, which sum to 1: useful, saving, and lost to failures.

    `lost_share`: work done again, and restarts.
    """

    interval_s: float  # of useful work between two checkpoints
    job_mtbf_s: float
    save_s: float
    restart_s: float
    useful_share: float
    saving_share: float

    @property
    def lost_share(self) -> float:
        """Work that is done again, and restarts."""
        return 1 - self.useful_share - self.saving_share


def goodput(
    *,
    chips: int,
    chip_mtbf_s: float,
    save_s: float,
    restart_s: float,
    interval_s: float | None = None,
) -> Goodput:
    """The goodput of a job that saves every `interval_s`, by default the best.

    Raises ConfigError for times that are not above 0, or a job that fails before it gets anywhere.
    """
    named = {"chip_mtbf_s": chip_mtbf_s, "save_s": save_s, "restart_s": restart_s}
    for name, value in {**named, "interval_s": 1.0 if interval_s is None else interval_s}.items():
        if not 0 < value < float("inf"):
            raise ConfigError(name, value, "above 0, finite")
    mtbf_s = chip_mtbf_s / chips
    useful_s = best_interval_s(mtbf_s, save_s) if interval_s is None else interval_s
    if max(useful_s + save_s, restart_s) > _HOPELESS * mtbf_s:
        expected = f"more: one of {chips} chips fails every {mtbf_s:g} s"
        raise ConfigError("chip_mtbf_s", chip_mtbf_s, expected)
    expected_s = mtbf_s * exp(restart_s / mtbf_s) * expm1((useful_s + save_s) / mtbf_s)
    return Goodput(
        interval_s=useful_s,
        job_mtbf_s=mtbf_s,
        save_s=save_s,
        restart_s=restart_s,
        useful_share=useful_s / expected_s,
        saving_share=save_s / expected_s,
    )


def best_interval_s(mtbf_s: float, save_s: float) -> float:
    """Daly's optimum (his equation 37)."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = sqrt(save_s / (2 * mtbf_s))
    return sqrt(2 * save_s * mtbf_s) * (1 + ratio / 3 + ratio**2 / 9) - save_s


_HOPELESS: Final = 100.0  # mean times between failures: useful shares would be below 1e-40
