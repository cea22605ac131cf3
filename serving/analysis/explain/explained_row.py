"""A row of measurements as a question: the decode step of its closed loop."""

from pathlib import Path

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import shipped_fits
from emulator.specs.stack_factors import StackFactors
from emulator.timing.draft_acceptance import accepted_tokens
from emulator.units import NS_PER_S
from reporting.numbers import signed_percent
from serving.analysis.explain.explanation import Compared
from serving.analysis.explain.step_load import DeclaredLoad
from serving.analysis.explain.step_question import StepQuestion
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_deployment import KV_BLOCK_TOKENS, cache_terms
from serving.analysis.validate.row_prediction import RowPredictor, measured_calibration
from serving.analysis.validate.usable_rows import UsableRow, usable_rows


def row_of_file(
    path: Path, line: int
) -> tuple[StepQuestion, tuple[Compared, ...], tuple[str, ...]]:
    """The decode step at the batch of the row's steady state, what was measured, and notes.

    The predicted TPOT is that of the row's simulated run, by the fit without the row's machine, as
    `validate` has it. Raises ConfigError for a file that cannot be read, and a line that holds no
    usable row.
    """
    row = _usable(path, line)
    configuration, deployment = row.measured.configuration, row.load.deployment
    machine, release = configuration.hardware, deployment.stack.release
    fits = shipped_fits()
    seen = configuration.fingerprint in fits.fitted
    if seen and machine not in fits.without:
        raise ConfigError("row", line, f"a machine that a fit left out, not {machine}")
    factors = fits.without[machine] if seen else fits.everything
    predictor = RowPredictor([row.load])
    loop = predictor.loop(factors)
    requests = max(1, round(float(loop.batch[0])))
    pool = deployment.decode
    tokens_per_step = 1 + accepted_tokens("mtp", deployment.draft_tokens)
    intervals = fits.intervals_without.get(machine, fits.intervals) if seen else fits.intervals
    words = f"calibration fitted without {machine}" if seen else "calibration fitted"
    context_tokens = max(1, int(deployment.prompt_tokens + deployment.output_tokens / 2))
    question = StepQuestion(
        subject=f"row {line} of {path.name}, decode step",
        system=pool.system,
        model=deployment.model,
        precision=configuration.precision,
        candidate=PartitionCandidate(
            partition=pool.partition,
            replicas=pool.workers,
            first_chip=0,
            kv_capacity_tokens=deployment.kv_blocks * KV_BLOCK_TOKENS,
        ),
        load=DeclaredLoad(context_tokens=context_tokens),
        requests=requests,
        assumptions=StepAssumptions(
            overlap=Overlap.NONE, calibration=measured_calibration(factors, machine, release)
        ),
        terms=cache_terms(trt="trt" in deployment.framework),
        across_units=pool.system.units > 1,
        draft_tokens=deployment.draft_tokens,
        tokens_per_step=tokens_per_step,
        peak_loads=True,
        left_out=tuple(
            measured_calibration(each, machine, release) for each in fits.without.values()
        ),
        calibrated_by=f"{words}, efficiencies and overheads of public measurements; exchanges take "
        f"{factors.exchange_skew:.3g} times as long as even ones, as in the measured deployments"
        f"{_release_words(factors, machine, release)}",
        intervals=intervals,
    )
    run = predictor.simulate(factors, np.ones(1, dtype=np.bool_))
    return question, *_measured(row, question, float(run.tpot_s[0]) * NS_PER_S)


def _release_words(factors: StackFactors, machine: str, release: str) -> str:
    times = factors.release_overhead(machine, release)
    return "" if times == 1 else f"; overheads of {release} are {times:.3g} times the usual ones"


def _usable(path: Path, line: int) -> UsableRow:
    usable, excluded = usable_rows(read_rows(path))
    for row in usable:
        if row.measured.line == line:
            return row
    for left in excluded:
        if left.line == line:
            raise ConfigError("row", line, f"a usable row: {left.reason}")
    lines = [row.measured.line for row in usable]
    expected = f"a line of {path.name}, {min(lines)} to {max(lines)}" if lines else "a usable row"
    raise ConfigError("row", line, expected)


def _measured(
    row: UsableRow, question: StepQuestion, tpot_ns: float
) -> tuple[tuple[Compared, ...], tuple[str, ...]]:
    """The measured TPOT beside the predicted one, and how that comes from the step."""
    configuration = row.measured.configuration
    step_ns = question.counted().duration_ns()
    held_ns = tpot_ns - step_ns / question.tokens_per_step
    drafts = f" / {question.tokens_per_step:.3g} tokens a step" if question.draft_tokens else ""
    step_words = f"step{drafts}"
    what = "prompts of others, and batches of the run beside the steady one"
    notes = [
        f"{configuration.hardware} {configuration.framework} {configuration.precision}, "
        f"{configuration.layout}, {configuration.workload} tokens, {row.measured.users:,} users",
        f"TPOT = {step_words} {held_ns / 1e6:+,.3f} ms: {what}",
    ]
    measured_s = row.measured.results.tpot_s
    if measured_s is None:
        return (), (*notes, "its TPOT was not measured")
    interval = question.intervals.get("tpot")
    if interval is not None:
        ratio = measured_s * NS_PER_S / tpot_ns
        inside = "inside" if interval.least <= ratio <= interval.most else "outside"
        notes.append(
            f"the measured TPOT is {inside} the interval of {signed_percent(interval.least - 1)} "
            f"to {signed_percent(interval.most - 1)}"
        )
    compared = Compared(what="measured TPOT", ns=measured_s * NS_PER_S, predicted_ns=tpot_ns)
    return (compared,), tuple(notes)
