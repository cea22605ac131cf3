"""Exit codes of the command."""

from typing import Final

OK: Final = 0
REQUESTS_FAILED: Final = 1
WRONG_INPUT: Final = 2
READER_GONE: Final = 141  # as a shell reports a program whose reader has gone, as with `| head`
INTERRUPTED: Final = 130  # as a shell reports a program that was ended by Ctrl-C

WORDS: Final = """\
exit codes:
  0; 1 when a request failed or none was measured; 2 for wrong input, a server that cannot be asked
  or a file that cannot be written; 130 after Ctrl-C; 141 when nobody reads standard output"""
