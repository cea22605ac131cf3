"""The report of a simulated run."""
