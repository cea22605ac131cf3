"""Steps and faults as neuron-monitor's executions, their errors and times.

Source: AWS Neuron SDK docs, neuron-monitor-user-guide.rst, execution_stats.
"""

from typing import Final

from emulator.specs.fault import FaultKind

ERRORS: Final = ("generic", "numerical", "transient", "model", "runtime", "hardware")
ERROR_OF_FAULT: Final = {
    FaultKind.LOSE_CHIP: "hardware",
    FaultKind.HANG_CHIP: "hardware",
    FaultKind.FAIL_STACK: "hardware",
    FaultKind.SLOW_CHIP: "transient",
    FaultKind.CUT_LINK: "transient",
    FaultKind.PULL_SWITCH_TRAY: "transient",
}
"""Hardware loses work or memory; transient only slows it. No fault has another kind."""

OUTCOMES: Final = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)
"""A step that meets a fault is repeated and completes, so the others stay 0."""

PERCENTILES: Final = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
