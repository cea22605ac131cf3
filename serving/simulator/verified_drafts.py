"""Drafts of a step, and how many are right, compiled: draws by seed, request and position alone."""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

import numpy as np

from emulator.arrays import Int64s
from emulator.compiled import compiled
from serving.simulator.scheduler_arrays import Acceptance, SchedulerArrays

# Odd factors that spread seed, request and position, and the finalizer of SplitMix64.
_SEED, _REQUEST, _POSITION = (
    np.uint64(0xD1342543DE82EF95),
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)


def step_drafts(
    s: SchedulerArrays, acceptance: Acceptance | None, rows: int
) -> tuple[Int64s, Int64s | None, Int64s | None]:
    """New tokens of a step's rows without drafts, and drafts beside them, [rows] each: those
    verified, and those made, of each request that gets a token; None without drafts.
    """
    new_tokens: Int64s = s.rows["new"][:rows].copy()
    if acceptance is None:
        return new_tokens, None, None
    draws = ~s.requests["is_prefill"][s.rows["request"][:rows]]
    verified = abs(s.rows["drafts"][:rows]).astype(np.int64)
    return new_tokens - verified, verified, len(acceptance.rates) * draws.astype(np.int64)


@compiled
def accepted_drafts(s: SchedulerArrays, acceptance: Acceptance, row: int) -> int:
    """Drafts of a row up to the first one that is wrong; of padding, none is right."""
    request, right = s.rows[row].request, 0
    while right < s.rows[row].drafts and (
        drawn(acceptance.seed, request, s.requests[request].tokens + right)
        < acceptance.rates[right]
    ):
        right += 1
    return right


@compiled
def drawn(seed: int, request: int, position: int) -> float:
    """From 0 to 1, evenly, for the token at `position` of a request."""
    mixed = (
        np.uint64(seed) * _SEED + np.uint64(request) * _REQUEST + np.uint64(position) * _POSITION
    )
    mixed = (mixed ^ (mixed >> _30)) * _MIX_1
    mixed = (mixed ^ (mixed >> _27)) * _MIX_2
    return ((mixed ^ (mixed >> _31)) >> _11) * 2.0**-53
