"""One training layer of a chip's experts: weighted sums, and their backward pass.

A row is a token's hidden state; a pair is a row with one of this chip's experts. Pair weights are
applied here, so that each received row returns as one row of sums.
"""

import numpy as np
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from emulator.arrays import Float32s, Int64s
from emulator.chip.training_commands import TrainExperts
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import Parameters
from emulator.compute.training_experts import ExpertsTape, experts_backward, experts_forward


class ExpertWork:
    """State of `forward` that `backward` needs."""

    __slots__ = ("_command", "_out", "_pairs_of_row", "_precision", "_tape")

    def __init__(
        self, command: TrainExperts, out: Float32s, tape: ExpertsTape, precision: Precision
    ) -> None:
        self._command = command
        self._out = out  # [pairs, hidden], unweighted
        self._tape = tape
        self._precision = precision
        self._pairs_of_row = _pairs_of_row(command)

    @classmethod
    def forward(
        cls, experts: Parameters, command: TrainExperts, precision: Precision
    ) -> tuple["ExpertWork", Float32s]:
        """Apply `experts` to the rows of `command`; returns the work and sums [rows, hidden]."""
        rows = command.rows[command.row_of_pair]  # [pairs, hidden]
        out, tape = experts_forward(experts, command.layer, rows, command.counts, precision)
        work = cls(command, out, tape, precision)
        return work, work._summed(out, command.weights)

    def backward(
        self, experts: Parameters, grads: Parameters, grad_sums: Float32s
    ) -> tuple[Float32s, Float32s]:
        """Turn `grad_sums` dL/dsums [rows, hidden] into gradients by rows [rows, hidden] and by
        pair weights [pairs]; adds to `grads`.
        """
        command = self._command
        of_pair = grad_sums[command.row_of_pair]  # [pairs, hidden]
        by_weight: Float32s = np.einsum("ph,ph->p", of_pair, self._out)
        of_pair *= command.weights[:, None]
        as_operand(of_pair, self._precision)
        by_row = experts_backward(experts, grads, command.layer, self._tape, of_pair)
        return self._summed(by_row, np.ones(len(by_row), np.float32)), by_weight

    def _summed(self, of_pair: Float32s, weights: Float32s) -> Float32s:
        """Add each row's pairs, [pairs, hidden] -> [rows, hidden], in slot order."""
        order, ends = self._pairs_of_row
        shape = (len(ends) - 1, len(of_pair))
        total: Float32s = csr_array((weights[order], order, ends), shape=shape) @ of_pair
        return total


def _pairs_of_row(command: TrainExperts) -> tuple[Int64s, Int64s]:
    order = np.argsort(command.row_of_pair, kind="stable")
    counts = np.bincount(command.row_of_pair, minlength=len(command.rows))
    return order, np.concatenate([[0], np.cumsum(counts)])
