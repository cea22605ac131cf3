from dataclasses import replace

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.timing.launch import kernel_launch_ns, step_launch_ns


def test_a_compiled_graph_is_launched_once_and_a_gpus_kernels_one_by_one() -> None:
    gpu = replace(TRAINIUM3, maker="NVIDIA")

    assert kernel_launch_ns(TRAINIUM3) == 0
    assert kernel_launch_ns(gpu) == step_launch_ns(gpu) == TRAINIUM3.launch_ns.value
