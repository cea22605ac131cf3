"""Options of `ultraserve simulate`: a second pool of chips, faults, hand-overs, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.analysis_options import check_absent, check_least
from serving.policy.rank_roles import parse_prefill_ranks
from startup.typed_options import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emulator.specs.partition import Partition
    from serving.simulator import SimulatedDeployment, TimedCall

REPAIR_S: Final = 600.0
_OF_LOSSES: Final = ("repair",)
_OF_PREFILL: Final = ("prefill_tp", "prefill_replicas")


@dataclass(frozen=True, kw_only=True)
class SimulatedPoolOptions:
    """Ranks of an engine, or other chips, that compute the prompts."""

    GROUP = "prefill on ranks or chips of its own"

    prefill_ranks: int | str = option(
        0,
        "ranks of an engine that compute prompts alone, and send their KV to its other ranks; "
        "auto: as many as prompts need, by the load (default: none)",
        type=parse_prefill_ranks,
        metavar="N",
    )

    prefill_chips: int | None = option(
        None, "chips of an engine that computes prompts alone, and sends their KV over the fabric"
    )
    prefill_tp: int | None = option(None, "chips of a rank there (default: 1)")
    prefill_replicas: int | None = option(None, "such engines (default: 1)")

    def __post_init__(self) -> None:
        for name in ("prefill_chips", *_OF_PREFILL):
            check_least(name, getattr(self, name), 1)
        if self.prefill_chips is None:
            check_absent(self, _OF_PREFILL, expected="nothing without --prefill-chips")
        elif self.prefill_ranks:
            expected = "none beside --prefill-chips"
            raise ConfigError("prefill-ranks", self.prefill_ranks, expected)

    def prefill_partition(self, decode: Partition) -> Partition | None:
        """The partition of such an engine, with all else as in `decode`; None without one."""
        if self.prefill_chips is None:
            return None
        return replace(
            decode, chips=self.prefill_chips, ep=self.prefill_chips, tp=self.prefill_tp or 1
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedEventOptions:
    """Faults, repairs, hand-overs, and clients that give up."""

    GROUP = "events"

    timeout: float | None = option(
        None, "seconds after which a client gives a request up (default: never)", metavar="S"
    )
    calls: Path | None = option(
        None,
        "JSON lines of control calls to the machines at emulated times: faults, repairs, drains",
        metavar="FILE",
    )
    chip_loss_every: float | None = option(
        None,
        "mean seconds between random losses of chips, over all engines",
        metavar="S",
    )
    repair: float | None = option(
        None, f"seconds until a lost chip is repaired (default: {REPAIR_S:g})", metavar="S"
    )

    def __post_init__(self) -> None:
        for name in ("timeout", "chip_loss_every", "repair"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(name.replace("_", "-"), value, "seconds, above 0")
        if self.chip_loss_every is None:
            check_absent(self, _OF_LOSSES, expected="nothing without --chip-loss-every")

    def timed_calls(self, deployment: SimulatedDeployment, *, seed: int) -> Sequence[TimedCall]:
        """Those of the file, and drawn losses; raises ConfigError."""
        from serving.simulator import drawn_losses, read_timed_calls

        timed = [] if self.calls is None else list(read_timed_calls(self.calls))
        if self.chip_loss_every is not None:
            timed += drawn_losses(
                deployment.partitions,
                every_s=self.chip_loss_every,
                repair_s=self.repair or REPAIR_S,
                seed=seed,
            )
        return timed
