"""How the stacks of measured rows schedule, by their public launch scripts.

Scripts: github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node (one engine), and
github.com/NVIDIA/srt-slurm, recipes (two pools). A row names a framework and no script: a setting
is that of the framework's scripts on its generation of chips; none is of one row or machine.
"""

from dataclasses import dataclass
from typing import Final

from emulator.specs.chips import chip_by_name
from serving.analysis.validate.counted_rows import PASS_TOKENS_MAX, RowLoad
from serving.analysis.validate.row_deployment import Pool, RowDeployment
from serving.simulator.closed_loop_kernel import StackRules

TAKE_STEPS: Final = (10, 30)
"""SGLang's scheduler-recv-interval on Blackwell, in decode steps, below TAKE_USERS and from there
on; everywhere else, and with attention DP, it is 1.
"""
TAKE_USERS: Final = 16
TOGETHER_STEPS: Final = 60
"""TensorRT-LLM's attention_dp_config with enable_balance: timeout_iters."""
TRT_TOKENS: Final = 8_192
"""max_num_tokens of TensorRT-LLM's ranks at least: room for the longest prompt beside decodes."""
FULL_BATCH_SHARE: Final = 1.5
"""Recipes of TensorRT-LLM with two pools give a decode rank a power of two of sequences, and a
little more users: of 141 in which users are up to 1.5 times the next lower power of two, 125 have
that for their limit.
"""
DISAGGREGATED_FRONT_ENDS: Final = 2
"""*Assumed*: a request goes through the front ends of both pools, one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Of one pool: prompt tokens of a rank in a step, sequences of a rank, and other rules."""

    step_tokens: int
    seats: int
    rules: StackRules


def decode_settings(load: RowLoad) -> LaunchSettings:
    """Of the pool that decodes, and computes its own prompts unless there is another."""
    deployment = load.deployment
    trt = "trt" in deployment.framework
    attention_dp = deployment.decode.partition.ranks > 1
    take_steps = together_steps = 0
    if not deployment.disaggregated:
        together_steps = TOGETHER_STEPS if trt and attention_dp else 0
        blackwell = chip_by_name(deployment.stack.machine).generation == "blackwell"
        if "sglang" in deployment.framework and blackwell and not attention_dp:
            take_steps = TAKE_STEPS[load.users >= TAKE_USERS]
    return LaunchSettings(
        step_tokens=_step_tokens(deployment, deployment.decode),
        seats=_seats(load) if trt and deployment.disaggregated else load.users,
        rules=StackRules(
            take_steps=take_steps,
            together_steps=together_steps,
            prompts_first=not trt,
            ahead=_decides_ahead(deployment),
        ),
    )


def prefill_settings(load: RowLoad) -> LaunchSettings:
    """Of the pool that computes prompts for another."""
    return LaunchSettings(
        step_tokens=_step_tokens(load.deployment, load.deployment.prefill),
        seats=load.users,
        rules=StackRules(
            take_steps=0,
            together_steps=0,
            prompts_first=False,
            ahead="sglang" in load.deployment.framework,
        ),
    )


def front_ends(deployment: RowDeployment) -> int:
    """That a request passes on its way in."""
    return DISAGGREGATED_FRONT_ENDS if deployment.disaggregated else 1


def _decides_ahead(deployment: RowDeployment) -> bool:
    """Engines that decode: overlap schedulers, as SGLang and TensorRT-LLM have, on unless a script
    says otherwise; *assumed* of a framework that no script here is of.
    """
    return "atom" not in deployment.framework


def _step_tokens(deployment: RowDeployment, pool: Pool) -> int:
    """Whole prompts: *assumed* of other frameworks, whose scripts allow 8,192 to 196,608 tokens."""
    trt = "trt" in deployment.framework
    usual = TRT_TOKENS if trt else PASS_TOKENS_MAX // pool.partition.ranks
    return max(usual, deployment.prompt_tokens_max)


def _seats(load: RowLoad) -> int:
    """The power of two below the users of a rank, or above where too many would be left."""
    decode = load.deployment.decode
    each = load.users / (decode.workers * decode.partition.ranks)
    below = 1 << max(0, int(each).bit_length() - 1)
    return below if each < FULL_BATCH_SHARE * below else 2 * below
