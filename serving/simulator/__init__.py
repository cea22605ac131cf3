"""vLLM's schedulers and the cost model in virtual time; see `deploy/guides/simulate.md`."""

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
from serving.simulator.simulate import simulate
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulation_workers import THIS_PROCESS, SimulationWorkers
from serving.simulator.virtual_serving import StopSimulation
from serving.traffic.engine_limits import SchedulerLimits

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
