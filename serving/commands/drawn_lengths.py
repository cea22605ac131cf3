"""Lengths as commands take them: in the load generator's words, with one default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loadgen.workloads.drawn_defaults import INPUT, OUTPUT

if TYPE_CHECKING:
    from loadgen.workloads.length_pairs import IndependentLengths
    from loadgen.workloads.session_options import LengthOptions
    from loadgen.workloads.workload_spec import Lengths

_DRAWS: Final = 20_000
"""Lengths behind a mean, within 1 % of it."""


def drawn_lengths(options: LengthOptions) -> IndependentLengths:
    """Of prompts and replies, each drawn for itself; raises LoadError."""
    from loadgen.workloads.length_pairs import IndependentLengths

    return IndependentLengths(
        prompt=lengths_of("input", options.input or INPUT),
        output=lengths_of("output", options.output or OUTPUT),
    )


def lengths_of(name: str, text: str) -> Lengths:
    """The lengths of the option `name`; raises LoadError."""
    from loadgen.workloads.lengths import parse_lengths

    return parse_lengths(text, option=f"--{name}")


def mean_tokens(name: str, text: str) -> int:
    """The mean of the lengths of the option `name`, at least 1; raises LoadError."""
    import numpy as np

    drawn = lengths_of(name, text).draw(np.random.default_rng(0), _DRAWS)
    return max(1, round(float(drawn.mean())))
