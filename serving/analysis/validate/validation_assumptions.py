"""Assumptions of a validation, in words."""

from collections.abc import Iterator
from typing import Final

from serving.analysis.validate.validation import Validation

_EVERY_TIME: Final = (
    "No result column enters a prediction, and validation fits nothing.",
    "Left out: a row by the fit that had seen no row of its machine; a row whose configuration no "
    "fit has seen, by the fit on everything. A generation's factors come from its other machines, "
    "and are 1 where it has none.",
    "An interval holds four of five ratios of measured to predicted, of rows predicted with their "
    "machine left out; a row's own interval is of the other machines' rows.",
    "No factor belongs to one machine, and none grows with a date: they made rows of machines that "
    "were not fitted worse.",
    "Which release of its stack a row ran is that of the image which the benchmark's public "
    "history names for its configuration on its day (emulator/data/stack_releases.csv). A release "
    "multiplies the overheads of its generation, fitted after the other factors and shrunk to 1; "
    "it is 1 where no release is known, or none was measured on the generation, and in every plan.",
    "Lengths are 0.9 of the nominal ones, as the benchmark draws them from 80 % to 100 %.",
    "A row is run as the benchmark ran it: ten requests a user, all users' first at once on idle "
    "engines (its warm-up ends before), on the simulator's schedulers; a table of the row's steps "
    "at mean lengths says how long each takes.",
    "Schedulers follow public launch scripts: SGLang on Blackwell without attention DP looks for "
    "requests every 30 decode steps, every 10 below 16 users; TensorRT-LLM's prompts wait up to 60 "
    "steps for those of the other attention ranks, and of two pools a decode rank holds the next "
    "lower power of two of its users, unless they are 1.5 times as many. Both decide a step while "
    "the one before it runs (overlap schedulers), but for TensorRT-LLM's pools for prompts. ATOM "
    "does not; that a framework without such scripts does, where it decodes, is assumed.",
    "Assumed: a request passes two front ends where there are two pools, goes to the engine with "
    "the fewest requests, and prompts go whole into a step, up to 16,384 tokens (8,192 a rank with "
    "TensorRT-LLM).",
    "KV is FP8, but for SGLang on Hopper (BF16). FP4 is of routed experts alone; the rest "
    "stays FP8.",
    "Rows with tp 1 and ep 1 on several GPUs a worker: up to 4 are plain TP, more are "
    "attention DP with expert parallelism (public recipes of NVIDIA/srt-slurm).",
    "Speculation drafts 3 tokens with TensorRT-LLM, ATOM and SGLang on AMD, 2 with SGLang on "
    "NVIDIA; 1 with attention DP in TensorRT-LLM's one pool, in its two pools with more than 50 "
    "sequences a rank, and in SGLang's pools of AMD or of more than 8 GPUs (public launch "
    "scripts). Rows of MI300X and MI325X that are named mtp and are older than 2026-06-14 draft "
    "nothing, since their launchers ran the plain script until then; they are not fitted. A row "
    "without a date is assumed to be later. How many drafts are right is published (82 % of the "
    "first, 0.89 times as many of each further one); what drafts add to the overheads is fitted.",
    "Experts are liked unevenly (the one of rank r as r^-0.6, assumed), so that a batch needs "
    "fewer of them and one chip has more than its part; a layer waits for the expected largest "
    "load of a chip, and an exchange takes exchange_skew times as long as an even one. That factor "
    "is fitted to the rows, which balance no experts; published rates with balanced experts have "
    "none. It is found after the other factors, whose fit charges exchanges inside a box as those "
    "between boxes.",
    "Inside a box GPUs' cores store rows in each other's memory (store_share, store_ns, from "
    "DeepEP's kernels); assumed: a Trainium's DMA engines move them there as network cards do.",
    "The form of the model was chosen with these rows in view, by their errors with each machine "
    "left out.",
)
"""How rows are read, and choices made with them in view."""


def assumptions_of(validation: Validation) -> Iterator[str]:
    """One sentence each: how rows are read, what the fits are, and what their errors hide."""
    data = validation.fits.data
    yield (
        f"Factors were fitted on {data['date']} to {data['rows']} rows ({data['configurations']} "
        f"configurations) of {data['files']}, sha256 {str(data['sha256'])[:12]}: {data['method']}."
    )
    yield from _EVERY_TIME
