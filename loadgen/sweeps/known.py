"""What a sweep knows so far: its points, and what its runs say of each load."""

from dataclasses import dataclass, field

from loadgen.records.run_record import RunHeader
from loadgen.records.sweep_record import SweepPoint
from loadgen.sweeps.bound_shares import Held
from loadgen.sweeps.limit_search import Standing


@dataclass(kw_only=True)
class Known:
    """`helds` are by load, then one row of all bounds for each run; `first` is the first run's
    header and `time` that of its figures. `cut_short` says that the last point's run was.
    """

    points: list[SweepPoint] = field(default_factory=list)
    helds: dict[float, list[tuple[Held, ...]]] = field(default_factory=dict)
    standings: dict[float, Standing] = field(default_factory=dict)
    stopped: str = ""
    interrupted: bool = False
    cut_short: bool = False
    problem: str = ""
    first: RunHeader | None = None
    time: str = "wall"

    @property
    def whole(self) -> tuple[SweepPoint, ...]:
        """The points that figures may be read off: of a run that was cut short they are of less
        load than was asked for.
        """
        return tuple(self.points[:-1] if self.cut_short else self.points)
