"""vLLM's schedulers and the cost model in virtual time; see `deploy/guides/simulate.md`."""

from serving.engine.step_batch import StepWatcher
from serving.simulator.routers import ReplicaSet
from serving.simulator.run import Run, known_percentile
from serving.simulator.simulate import simulate
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulation_workers import SimulationWorkers
from serving.simulator.virtual_serving import StopSimulation
from serving.traffic.engine_limits import SchedulerLimits

__all__ = [
    "ReplicaSet",
    "Run",
    "SchedulerLimits",
    "SimulatedDeployment",
    "SimulationWorkers",
    "StepWatcher",
    "StopSimulation",
    "known_percentile",
    "simulate",
]
