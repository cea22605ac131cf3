"""Drawn requests where nothing else is said: the same in every command, and in the library."""

from typing import Final

INPUT: Final = "1024"
"""Tokens of a prompt, as `loadgen.workloads.lengths` writes them: with `OUTPUT` the first workload
of InferenceX.
"""
OUTPUT: Final = "1024"
"""Tokens of a reply."""
REQUESTS: Final = 600
"""Requests of a run, or those that it is judged by."""
SEED: Final = 0
"""Of lengths, prompts and arrivals."""
