"""Measured Trainium steps from AWS's documents and blogs, and predictions of them.

No fit has seen a Trainium: predictions take the factors that all machines share, and their errors,
scored by kind of point, show how far these carry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.specs.assumptions import with_assumptions
from emulator.specs.calibration import Calibration
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.timing.draft_acceptance import accepted_tokens
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state.step_batches import same_on_all


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainiumPoint:
    """A decode step of `batch` sequences over `context_tokens`, or a prompt of `new_tokens`.

    `draft_tokens` of an EAGLE head are verified in each step.
    """

    name: str
    system: str
    model: str
    partition: Partition
    batch: int = 1
    new_tokens: int = 1
    context_tokens: int
    draft_tokens: int = 0
    measured_ms: float
    conditions: str
    source: str

    @property
    def kind(self) -> str:
        """What is timed."""
        if self.new_tokens > 1:
            return "a prompt"
        return "decode, one sequence" if self.batch == 1 else "decode, batched"


_BLOG: Final = "AWS Neuron, GPT-OSS-20B megakernel on trn3pd98.3xlarge"
_VLLM: Final = "AWS vllm-neuron benchmarks, trn3.48xlarge"
_SDK: Final = "AWS Neuron SDK, benchmarks"
_ONE_CHIP: Final = Partition(chips=1, tp=1, ep=1, lnc=1)
_PROMPT_10K: Final = "TP64 (16 chips, LNC 2), BF16, a prompt of 10k"


def _gpt_oss_20b(context: int, measured_ms: float) -> TrainiumPoint:
    return TrainiumPoint(
        name=f"trn3, gpt-oss-20b, TPOT at {context:,}",
        system="trn3-nl32x2",
        model="gpt-oss-20b",
        partition=_ONE_CHIP,
        context_tokens=context,
        measured_ms=measured_ms,
        conditions="one chip, TP8 over its cores (LNC 1), BF16, one sequence",
        source=_BLOG,
    )


def _llama(
    name: str, model: str, measured_ms: float, conditions: str, *, is_prompt: bool = False
) -> TrainiumPoint:
    """A prompt of 10,000 tokens, or the decode step in the middle of the 1,500 after it."""
    return TrainiumPoint(
        name=f"trn2, {name}, {'TTFT' if is_prompt else 'TPOT'}",
        system="trn2.48xlarge",
        model=model,
        partition=Partition(chips=16, tp=16, ep=1, lnc=2),
        new_tokens=10_000 if is_prompt else 1,
        context_tokens=0 if is_prompt else 10_000 + 750,
        measured_ms=measured_ms,
        conditions=conditions,
        source=_SDK,
    )


def _qwen3_30b(
    name: str, measured_ms: float, conditions: str, *, batch: int = 1, new: int = 1, context: int
) -> TrainiumPoint:
    return TrainiumPoint(
        name=f"trn3, qwen3-30b-a3b, {name}",
        system="trn3-nl32x2",
        model="qwen3-30b-a3b",
        partition=Partition(chips=2, tp=2, ep=2, lnc=2),
        batch=batch,
        new_tokens=new,
        context_tokens=context,
        measured_ms=measured_ms,
        conditions=f"16 cores, TP8 EP8 (read as 2 chips, LNC 2), BF16, {conditions}",
        source=_VLLM,
    )


def _gpt_oss_120b(name: str, measured_ms: float, conditions: str, drafts: int) -> TrainiumPoint:
    return TrainiumPoint(
        name=f"trn2, gpt-oss-120b, {name}",
        system="trn2.48xlarge",
        model="gpt-oss-120b",
        partition=Partition(chips=4, tp=4, ep=1, expert_tp=4, lnc=2),
        context_tokens=2_048,
        draft_tokens=drafts,
        measured_ms=measured_ms,
        conditions=f"TP16 (4 chips, LNC 2), BF16, one sequence, read as a context of 2,048"
        f"{conditions}",
        source=_SDK,
    )


TRAINIUM_POINTS: Final = (
    _gpt_oss_20b(640, 5.88),
    _gpt_oss_20b(2_048, 4.92),
    _gpt_oss_20b(4_096, 4.85),
    _gpt_oss_20b(8_192, 4.98),
    TrainiumPoint(
        name="trn3, gpt-oss-20b, TPOT of 8",
        system="trn3-nl32x2",
        model="gpt-oss-20b",
        partition=_ONE_CHIP,
        batch=8,
        context_tokens=2_048,
        measured_ms=16.6,
        conditions="one chip, TP8 over its cores (LNC 1), BF16, 8 sequences, read as 2,048 each; "
        "the middle of 15.5 to 17.7 ms",
        source=_BLOG,
    ),
    _qwen3_30b("ITL", 15.5, "one sequence, 2,048 + 512", context=2_048 + 256),
    _qwen3_30b("TTFT", 678.0, "a prompt of 2,048", new=2_048, context=0),
    _qwen3_30b("ITL of 32", 53.7, "32 sequences, 512 + 256", batch=32, context=512 + 128),
    _llama(
        "llama-3.3-70b",
        "llama-3.1-70b",
        19.6,
        "TP64 (16 chips, LNC 2), BF16, 10k + 1.5k, read as one sequence",
    ),
    _llama("llama-3.3-70b", "llama-3.1-70b", 814.0, _PROMPT_10K, is_prompt=True),
    _llama(
        "llama-3.1-405b",
        "llama-3.1-405b",
        37.9,
        "read as TP64 (16 chips, LNC 2), BF16, 10k + 1.5k, one sequence",
    ),
    _llama("llama-3.1-405b", "llama-3.1-405b", 2_442.0, f"read as {_PROMPT_10K}", is_prompt=True),
    _gpt_oss_120b("TPOT", 7.0, "", 0),
    _gpt_oss_120b("TPOT with EAGLE-3", 5.82, ", 5 drafts", 5),
)


def trainium_ns(
    point: TrainiumPoint,
    *,
    figures: Sequence[str] = (),
    change: Callable[[Calibration], Calibration] = lambda shipped: shipped,
) -> float:
    """The point's prompt pass, or time per output token, in nanoseconds.

    `figures`: other ones of the system, as "NAME=VALUE". `change`: of the calibration that ships.
    """
    system = with_assumptions(system_by_name(point.system), figures)
    model = model_by_name(point.model).at_precision("bf16")
    costs = StepCostModel(
        system,
        model,
        point.partition,
        calibration=change(calibration_for(system.chip.name)),
        draft_tokens=point.draft_tokens,
    )
    new, context = [point.new_tokens] * point.batch, [point.context_tokens] * point.batch
    step_ns = costs.cost(same_on_all(point.partition.ranks, new, context)).duration_ns
    return step_ns / (1 + accepted_tokens("eagle", point.draft_tokens))
