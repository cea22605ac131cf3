"""Assumptions of a validation, in words."""

from collections.abc import Iterator
from typing import Final

from serving.analysis.validate.row_prediction import REFERENCE_DAY
from serving.analysis.validate.validation import Validation

_EVERY_TIME: Final = (
    "No result column enters a prediction, and validation fits nothing.",
    "Held out: each row by those of five half fits that had not seen its configuration, "
    "pooled; a row that no fit has seen by the fit on everything.",
    "A row's date is the age of its software, which overheads grow with; months before "
    f"{REFERENCE_DAY}, at most seven.",
    "Lengths are 0.9 of the nominal ones, as the benchmark draws them from 80 % to 100 %.",
    "A run sends ten requests a user, all users at once: mean TTFT holds the first burst's "
    "queue, which depends on the client's timing and is the least certain of the predictions.",
    "KV is FP8, but for SGLang on Hopper (BF16). FP4 is of routed experts alone; the rest "
    "stays FP8.",
    "Rows with tp 1 and ep 1 on several GPUs a worker: up to 4 are plain TP, more are "
    "attention DP with expert parallelism (public recipes of NVIDIA/srt-slurm).",
    "Speculation drafts 1 token with attention DP, else 3 with TensorRT-LLM and 2 with SGLang "
    "(public launch scripts); one acceptance for all of them is fitted.",
    "Experts are picked evenly at random; a layer waits for the expected largest load of a chip.",
    "SGLang on AMD counts as a framework of its own, with two factors of its own: other "
    "kernels and other release dates than on NVIDIA. That makes 27 factors; with one SGLang "
    "for both, 25, the AMD machines' held-out medians were 26 to 27 %. A machine or framework "
    "that was never fitted has multipliers of 1 and no ageing.",
    "The form of the model was chosen with these rows in view, and the seeds of the split are "
    "five of many: single seeds vary by several points where a machine has few rows.",
    "Configurations that differ in their date alone may lie in different halves: with such "
    "twins kept together, gb200's held-out median was 14 %, the others' as they are.",
)
"""How rows are read, and choices made with them in view."""


def assumptions_of(validation: Validation) -> Iterator[str]:
    """One sentence each: how rows are read, what the fits are, and what their errors hide."""
    data = validation.fits.data
    yield (
        f"Factors were fitted on {data['date']} to {data['rows']} rows ({data['configurations']} "
        f"configurations) of {data['file']}, sha256 {str(data['sha256'])[:12]}: {data['method']}."
    )
    yield from _EVERY_TIME
    words = ", ".join(
        f"{machine} {100 * each['pooled']:.1f} % (worst {100 * each['worst']:.1f} %, above 12 % in "
        f"{each['above_12_percent']:.0f} of {each['seeds']:.0f})"
        for machine, each in validation.fits.fresh.items()
    )
    yield f"Median errors of held-out TPOT under other seeds than those five: {words}."
