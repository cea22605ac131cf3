"""Questions put to the simulator and to the cost model: plan, pareto, day, profile, validate."""
