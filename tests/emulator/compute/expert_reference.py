"""The slow, obvious reference of experts: one row at a time, in float64."""

import numpy as np

from emulator.compute.architecture import SwiGlu


def gated_slowly(both: np.ndarray, gate: SwiGlu) -> np.ndarray:
    """SwiGLU of `both` [..., 2 * width], gate columns first."""
    opened, up = np.split(both.astype(np.float64), 2, axis=-1)
    if gate.limit is not None:
        opened, up = np.minimum(opened, gate.limit), np.clip(up, -gate.limit, gate.limit)
    return opened / (1 + np.exp(-gate.alpha * opened)) * (up + gate.shift)


def run_experts_slowly(
    rows: np.ndarray,
    counts: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    biases: np.ndarray | None = None,
    gate: SwiGlu | None = None,
) -> np.ndarray:
    """Each of `rows` [pairs, hidden], sorted by expert, through its expert."""
    width = gate_up.shape[2]
    if biases is None:
        biases = np.zeros((len(counts), width + rows.shape[1]), dtype=np.float32)
    out = np.empty(rows.shape)
    for index, expert in enumerate(np.repeat(np.arange(len(counts)), counts)):
        both = rows[index].astype(np.float64) @ gate_up[expert] + biases[expert, :width]
        out[index] = gated_slowly(both, gate or SwiGlu()) @ down[expert] + biases[expert, width:]
    return out
