"""What the command's exit code says."""

from typing import Final

from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunRecord

OK: Final = 0
REQUESTS_FAILED: Final = 1
WRONG_INPUT: Final = 2
INTERRUPTED: Final = 130  # as a shell reports a program that was ended by Ctrl-C

WORDS: Final = """\
exit codes:
  0; 1 when a request failed; 2 for wrong input or a server that cannot be asked; 130 after
  Ctrl-C"""


def of_run(record: RunRecord, measures: RunMeasures) -> int:
    """The exit code of a run that has a report."""
    if record.end is not None and record.end.problem:
        return REQUESTS_FAILED
    if record.end is None or record.end.interrupted:
        return INTERRUPTED
    return REQUESTS_FAILED if measures.total.failed else OK
