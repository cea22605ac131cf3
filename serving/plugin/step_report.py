"""What the executor tells the scheduler of a step besides its tokens: times, totals, lost ranks."""

from dataclasses import dataclass, field

from vllm.v1.outputs import ModelRunnerOutput

from serving.metrics.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Emulated begin and end of a step in seconds, and the totals after it.

    `wall_origin_s` is the system's monotonic clock at emulated zero; a dilation of 0 means that
    time is virtual and does not follow the wall.

    `lost_ranks` lost their KV cache in this step; tokens that they sampled before are still good.
    `failed_requests` could not be computed and end with an error. `ranks_up` says of each rank
    whether it takes requests from now on, also of the lost ones, which a spare may have replaced;
    None leaves it as it was, but for the lost ones, which are then down.
    """

    begin_s: float
    end_s: float
    wall_origin_s: float
    snapshot: Snapshot
    lost_ranks: tuple[int, ...] = ()
    failed_requests: tuple[str, ...] = ()
    ranks_up: tuple[bool, ...] | None = None

    def at_monotonic_s(self, wall_s: float) -> float:
        """Emulated seconds at a reading of the monotonic clock; the step's begin when virtual."""
        if not self.snapshot.dilation:
            return self.begin_s
        return (wall_s - self.wall_origin_s) / self.snapshot.dilation


@dataclass
class TimedOutput(ModelRunnerOutput):
    """A ModelRunnerOutput that carries its step's report."""

    report: StepReport | None = field(default=None)
