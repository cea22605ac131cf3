"""A step's output for vLLM's scheduler: tokens and report, or StillHeld."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType
from vllm.v1.outputs import ModelRunnerOutput

from serving.engine.step_report import StepReport


@dataclass
class TimedOutput(ModelRunnerOutput):
    """A ModelRunnerOutput with its step's report."""

    report: StepReport | None = field(default=None)


@dataclass
class StillHeld(ModelRunnerOutput):
    """The output of a step under way: see `EngineSteps`."""


def stamp_events(events: Iterable[EngineCoreEvent], report: StepReport) -> None:
    """Replace wall stamps on events of the step of `report` by emulated seconds."""
    for event in events:
        if event.type is EngineCoreEventType.QUEUED:
            event.timestamp = min(report.at_monotonic_s(event.timestamp), report.begin_s)
        else:
            event.timestamp = report.begin_s
