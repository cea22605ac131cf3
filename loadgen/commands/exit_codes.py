"""What the command's exit code says."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # what only names these codes starts at once
    from loadgen.measures.run_measures import RunMeasures
    from loadgen.records.run_record import RunRecord

OK: Final = 0
REQUESTS_FAILED: Final = 1
WRONG_INPUT: Final = 2
READER_GONE: Final = 141  # as a shell reports a program whose reader has gone, as with `| head`
INTERRUPTED: Final = 130  # as a shell reports a program that was ended by Ctrl-C

WORDS: Final = """\
exit codes:
  0; 1 when a request failed or none was measured; 2 for wrong input, a server that cannot be asked
  or a file that cannot be written; 130 after Ctrl-C; 141 when nobody reads standard output"""


def of_run(record: "RunRecord", measures: "RunMeasures") -> int:
    """The exit code of a run that has a report."""
    if record.end is not None and record.end.problem:
        return REQUESTS_FAILED
    if record.end is None or record.end.interrupted:
        return INTERRUPTED
    nothing = not measures.total.completed  # as with a --skip that is longer than the run
    return REQUESTS_FAILED if measures.total.failed or nothing else OK
