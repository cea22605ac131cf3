"""Reports of a run, a sweep, or a comparison."""
