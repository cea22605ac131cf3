"""How many tokens the stacks of measured rows draft, by their public launch scripts.

Scripts: github.com/SemiAnalysisAI/InferenceX, benchmarks (one engine) and configs/amd-master.yaml
(two pools on AMD), and github.com/NVIDIA/srt-slurm, recipes (two pools on NVIDIA). A row says that
it drafts, and not how many tokens.
"""

from dataclasses import dataclass
from datetime import date
from typing import Final

from emulator.specs.chip import ChipSpec

MANY_SEQUENCES: Final = 50
"""Of a rank. TensorRT-LLM's recipes of two pools with attention DP: of 47 with at most so many, 42
draft three tokens, and of 45 with more, 36 draft one.
"""
BOX_CHIPS: Final = 8
"""SGLang's recipes with attention DP over more chips draft one token."""
CDNA3_DRAFTS_FROM: Final = date(2026, 6, 14)
"""Until then runners/launch_mi300x-amds.sh and launch_mi325x-amds.sh of InferenceX ran the plain
script for rows that are named mtp: commits f274a814d and 41c27c5b3 of that day add the _mtp.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingStack:
    """`chips` and `sequences`: of a decode engine, and of one of its attention ranks; `day`: of the
    run, if it is known.
    """

    framework: str
    chip: ChipSpec
    fp4: bool
    disaggregated: bool
    attention_dp: bool
    chips: int
    sequences: float
    day: date | None


def launch_drafts(stack: DraftingStack) -> int:
    """Tokens drafted in each step of a row with speculation."""
    if stack.chip.generation == "cdna3" and stack.day and stack.day < CDNA3_DRAFTS_FROM:
        return 0
    if "trt" in stack.framework:
        if stack.disaggregated:
            return 3 if stack.sequences <= MANY_SEQUENCES else 1
        return 1 if stack.attention_dp else 3
    if stack.chip.maker == "AMD":
        if not stack.disaggregated:
            return 3  # SGLang and ATOM
        if stack.attention_dp:
            return 1
        return 3 if stack.fp4 else 2
    return 1 if stack.attention_dp and stack.chips > BOX_CHIPS else 2
