"""What the executor tells the scheduler of a step besides its tokens: emulated times, totals."""

from dataclasses import dataclass, field

from vllm.v1.outputs import ModelRunnerOutput

from serving.metrics.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Emulated begin and end of a step in seconds, and the totals after it.

    `wall_origin_s` is the system's monotonic clock at emulated zero; a dilation of 0 means that
    time is virtual and does not follow the wall.
    """

    begin_s: float
    end_s: float
    wall_origin_s: float
    snapshot: Snapshot

    def at_monotonic_s(self, wall_s: float) -> float:
        """Emulated seconds at a reading of the monotonic clock; the step's begin when virtual."""
        if not self.snapshot.dilation:
            return self.begin_s
        return (wall_s - self.wall_origin_s) / self.snapshot.dilation


@dataclass
class TimedOutput(ModelRunnerOutput):
    """A ModelRunnerOutput that carries its step's report."""

    report: StepReport | None = field(default=None)
