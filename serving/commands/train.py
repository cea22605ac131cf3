"""`ultraserve train`: a training job on emulated chips; its directory is its whole interface."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.data import SMALL_MOE_DIR, weights_directory
from reporting.data_forms import json_text
from startup.typed_options import add_options, read_options

if TYPE_CHECKING:
    from serving.server.training.job import Trainer, TrainingJob
    from serving.server.training.job_status import CurvePoint, JobStatus

_SHOWN_EVERY_STEPS = 10


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `train` command."""
    from serving.server.training.job_spec import JobSpec

    parser = subparsers.add_parser(
        "train",
        help="train a model on emulated chips",
        description="Train a Qwen3-MoE model on emulated chips, from a folder of text. Everything "
        "about the job is kept in --dir; started again on it, the job goes on from its newest "
        "checkpoint. SIGTERM or Ctrl-C saves a checkpoint and ends.",
        epilog="Example: ultraserve train --dir job --chips 2 --steps 500 --init 1",
    )
    job = parser.add_argument_group("the job's files and its answer")
    job.add_argument(
        "--dir", dest="output", type=Path, required=True, metavar="DIR", help="the job's directory"
    )
    job.add_argument(
        "--compare-gzip",
        action="store_true",
        help="at the end, take the loss of all held-out files and compare it with gzip -9",
    )
    job.add_argument("--json", action="store_true", help="print the job's last status as JSON")
    add_options(parser, JobSpec, defaults={"weights": str(SMALL_MOE_DIR)})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train until done or asked to stop; returns 0. Raises UltraServeError."""
    from emulator.errors import ConfigError
    from serving.server.training.job import TrainingJob
    from serving.server.training.job_directory import JobDirectory, note_refused
    from serving.server.training.job_spec import JobSpec

    args.weights = str(weights_directory(args.weights).resolve())
    args.corpus = str(Path(args.corpus).resolve()) if args.corpus else ""
    try:
        spec = read_options(JobSpec, args)
    except ConfigError as error:
        note_refused(args.output, error)
        raise
    # Ray prints too when a chip is lost.
    talk = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with _stop_signals() as asked, talk, JobDirectory(args.output, spec) as directory:

        def say(line: str) -> None:
            print(line, flush=True)
            directory.say(line)

        def shows(point: CurvePoint, status: JobStatus) -> None:
            if point.step % _SHOWN_EVERY_STEPS == 0 or point.held_out_nats is not None:
                say(progress_line(point, status))

        job = TrainingJob(spec, directory, say=say, shows=shows, stop_asked=lambda: bool(asked))
        say(
            f"corpus {job.corpus.digest[:16]}: {len(job.corpus.training)} files to learn from, "
            f"{len(job.corpus.held_out)} held out, {job.corpus.skipped} skipped"
        )
        say(job.timed_step)
        at_end = (lambda trainer: compare(job, trainer, say)) if args.compare_gzip else None
        status = job.run(at_end)
        newest = directory.path / "checkpoints" / status.checkpoint
        kept = str(newest) if status.checkpoint else "no checkpoint yet"
        say(f"{status.phase} after step {status.step}: {kept}")
    if args.json:
        print(json_text(status))
    return 0


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Stop signals received meanwhile; a second Ctrl-C ends at once."""
    asked: list[int] = []

    def ask(which: int, _frame: object) -> None:
        if which == signal.SIGINT and which in asked:
            raise KeyboardInterrupt
        asked.append(which)
        # A handler may interrupt a print, so it writes past its buffer.
        os.write(2, b"stops after this step, with a checkpoint; Ctrl-C again ends at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def progress_line(point: CurvePoint, status: JobStatus) -> str:
    """One step for people."""
    held_out = ""
    if point.held_out_nats is not None and status.held_out_bits_per_byte is not None:
        held_out = (
            f"  held-out {point.held_out_nats:.4f} ({status.held_out_bits_per_byte:.3f} bits/byte)"
        )
    return (
        f"step {point.step:>6}  loss {point.loss:.4f}{held_out}  "
        f"{status.tokens_per_wall_s:,.0f} tokens/s  emulated {point.emulated_ns / 1e9:.4f} s  "
        f"{point.joules:,.1f} J"
    )


def compare(job: TrainingJob, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Say the loss of all held-out files, and gzip's.

    Windows overlap by half, so that a token has at least that much context; see `whole_text`.
    """
    from serving.server.training.evaluation import gzip_sizes

    windows = job.held_out.whole(stride=job.sequence_tokens // 2)
    loss = job.evaluate(trainer, windows)
    zipped = gzip_sizes(job.corpus.held_out)
    say(
        f"all held-out files: {loss.nats_per_token:.4f} nats/token, {loss.bits_per_byte:.4f} "
        f"bits/byte over {loss.tokens:,} tokens; gzip -9: {zipped.per_file_bits_per_byte:.4f} each "
        f"file for itself, {zipped.concatenated_bits_per_byte:.4f} all in one"
    )
