"""vLLM's schedulers and the cost model in virtual time; see `deploy/guides/simulate.md`.

A name's module is imported when it is first asked for: kernels need Numba, which takes longer than
all that a day whose curve is kept does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from serving.engine.step_batch import StepWatcher
    from serving.simulator.compiling import compile_kernels
    from serving.simulator.machine_calls import (
        MachineCall,
        TimedCall,
        drawn_losses,
        read_timed_calls,
    )
    from serving.simulator.own_choices import OwnChoices
    from serving.simulator.routers import ReplicaSet
    from serving.simulator.run import HandoverOutcome, Run, known_percentile
    from serving.simulator.simulated_deployment import SimulatedDeployment
    from serving.simulator.simulation import simulate
    from serving.simulator.simulation_workers import THIS_PROCESS, SimulationWorkers
    from serving.simulator.virtual_serving import StopSimulation
    from serving.traffic.engine_limits import SchedulerLimits

_MODULES: Final = {
    "compiling": ("compile_kernels",),
    "machine_calls": ("MachineCall", "TimedCall", "drawn_losses", "read_timed_calls"),
    "own_choices": ("OwnChoices",),
    "routers": ("ReplicaSet",),
    "run": ("HandoverOutcome", "Run", "known_percentile"),
    "simulated_deployment": ("SimulatedDeployment",),
    "simulation": ("simulate",),
    "simulation_workers": ("THIS_PROCESS", "SimulationWorkers"),
    "virtual_serving": ("StopSimulation",),
    "serving.engine.step_batch": ("StepWatcher",),
    "serving.traffic.engine_limits": ("SchedulerLimits",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "THIS_PROCESS",
    "HandoverOutcome",
    "MachineCall",
    "OwnChoices",
    "ReplicaSet",
    "Run",
    "SchedulerLimits",
    "SimulatedDeployment",
    "SimulationWorkers",
    "StepWatcher",
    "StopSimulation",
    "TimedCall",
    "compile_kernels",
    "drawn_losses",
    "known_percentile",
    "read_timed_calls",
    "simulate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home if "." in home else f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
