"""The forms in which a run, several runs, or their difference are shown."""
