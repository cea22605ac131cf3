"""A run with its live view on stderr: what `run` does once, and `sweep` at each load."""

from rich.console import Console

from loadgen.live.live_counts import LiveCounts
from loadgen.live.live_view import live_view
from loadgen.records.run_record import RunRecord
from loadgen.runs.options import RunOptions
from loadgen.runs.run import run


async def watched_run(options: RunOptions, *, command: str, key: str, quiet: bool) -> RunRecord:
    """Do the run, see `loadgen.runs.run.run`; shows nothing if `quiet`."""
    live = LiveCounts()
    async with live_view(live, console=Console(stderr=True), quiet=quiet):
        return await run(options, command=command, key=key, live=live)
