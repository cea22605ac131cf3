"""Questions to the simulator and the cost model: plan, pareto, day, profile, validate."""
