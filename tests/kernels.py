"""Compiles all large kernels, for a run whose workers would else compile parts of each again.

What kernels call is compiled in each process that compiles one, and a whole step is a part of
several. With kernels that are kept already it ends in two seconds.
"""

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.simulator import SimulatedDeployment, compile_kernels

SYSTEM, MODEL = "trn3-nl72x2", "qwen3-30b-a3b"
PARTITION = Partition(chips=2, ep=2)


def main() -> None:
    deployment = SimulatedDeployment.of(SYSTEM, MODEL, PARTITION)
    prompt_tokens = np.full(1, 20)
    block = PromptBlocks.of([[0]], tokens=32, prompt_tokens=prompt_tokens)
    for blocks in (None, block):  # without and with a prefix cache
        traffic = Traffic(
            arrival_s=np.zeros(1),
            prompt_tokens=prompt_tokens,
            output_tokens=np.full(1, 3),
            blocks=blocks,
        )
        compile_kernels(deployment, traffic, calls=True, timeouts=True, on_wait=lambda: None)

    batch = StepBatch(
        ranks=2,
        rank=np.arange(2),
        new_tokens=np.ones(2, dtype=np.int64),
        context_tokens=np.full(2, 9),
        logit_rows=np.ones(2, dtype=np.int64),
    )
    for overlap in Overlap:
        system, model = system_by_name(SYSTEM), model_by_name(MODEL)
        StepCostModel(system, model, PARTITION, overlap=overlap).cost(batch)


if __name__ == "__main__":
    main()
