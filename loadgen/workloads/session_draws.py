"""Random numbers of a workload, drawn at once for all sessions.

Each purpose has its own stream, with one number per session or call. So the first sessions of a
seed do not depend on their number, and an added option changes only its own part.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import OptionError
from loadgen.records.arrays import Int64s
from loadgen.workloads.recording import Recording
from loadgen.workloads.workload_spec import WorkloadSpec

# A plan keeps every call: ten million are some 10 GB, and more is a slip of the hand.
CALLS_MAX: Final = 10_000_000

# Keeps these streams apart from others that are made of the same seed.
_ROOM: Final = int.from_bytes(b"workload", "big")


class Stream(IntEnum):
    """The purpose of a random stream."""

    TURNS = 0
    INPUTS = 1
    OUTPUTS = 2
    ROWS = 3
    GROUPS = 4
    LONG = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionDraws:
    """Numbers of all sessions: `calls`, int64[sessions]; the tokens that each call adds to its
    prompt and those of its reply, int64[calls], one session after another; `groups`,
    int64[sessions], the system prompt; `long`, bool[sessions], those that begin with a long
    context.
    """

    calls: Int64s
    input_tokens: Int64s
    output_tokens: Int64s
    groups: Int64s
    long: NDArray[np.bool_]


def draw_sessions(
    spec: WorkloadSpec, *, sessions: int, seed: int, recording: Recording | None
) -> SessionDraws:
    """Draw the numbers of `sessions` sessions.

    With a recording, a session's first call has the lengths of its row (repeated as needed),
    further calls those of random rows. Without one, `spec` has both distributions of lengths.
    Raises OptionError for more than `CALLS_MAX` calls.
    """
    calls = _calls(spec, sessions, seed)
    firsts = np.cumsum(calls) - calls  # [sessions]
    total = int(calls.sum())
    if total > CALLS_MAX:
        expected = f"at most {CALLS_MAX:,} calls in all, not {total:,}"
        raise OptionError("--requests", sessions, expected)
    if recording is not None:
        rows = np.floor(_uniforms(seed, Stream.ROWS, total) * len(recording)).astype(np.int64)
        rows[firsts] = np.arange(sessions) % len(recording)
        inputs, outputs = recording.input_tokens[rows], recording.output_tokens[rows]
    if spec.input_lengths is not None:
        inputs = spec.input_lengths.draw(_chance(seed, Stream.INPUTS), total)
    if spec.output_lengths is not None:
        outputs = spec.output_lengths.draw(_chance(seed, Stream.OUTPUTS), total)
    long = _uniforms(seed, Stream.LONG, sessions) < spec.long_share
    inputs[firsts[long]] = spec.long_tokens
    return SessionDraws(
        calls=calls,
        input_tokens=inputs,
        output_tokens=outputs,
        groups=draw_groups(spec, sessions=sessions, seed=seed),
        long=long,
    )


def draw_turns(spec: WorkloadSpec, *, sessions: int, seed: int) -> Int64s | None:
    """Number of turns of each session, int64[sessions]; None without --turns."""
    if spec.turns is None:
        return None
    return spec.turns.draw(_chance(seed, Stream.TURNS), sessions)


def draw_groups(spec: WorkloadSpec, *, sessions: int, seed: int) -> Int64s:
    """The shared system prompt of each session, int64[sessions]."""
    groups = np.floor(_uniforms(seed, Stream.GROUPS, sessions) * spec.shared_prefix_groups)
    return groups.astype(np.int64)


def _calls(spec: WorkloadSpec, sessions: int, seed: int) -> Int64s:
    if spec.fan_out is not None:
        width, depth = spec.fan_out
        return np.full(sessions, 1 + depth * (width + 1), dtype=np.int64)
    turns = draw_turns(spec, sessions=sessions, seed=seed)
    return np.ones(sessions, dtype=np.int64) if turns is None else turns


def _chance(seed: int, stream: Stream) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, _ROOM, stream]))


def _uniforms(seed: int, stream: Stream, count: int) -> NDArray[np.float64]:
    return _chance(seed, stream).random(count)
