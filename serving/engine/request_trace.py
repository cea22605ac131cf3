"""A request's ranks, chips and joules, sent from the engine to its spans.

It travels in `kv_transfer_params`, which vLLM passes to the API process; no KV is transferred.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

TRACE_KEY: Final = "ultraserve_trace"
"""Key in an output's `kv_transfer_params`, where requests are traced."""


@dataclass(slots=True)
class RequestTrace:
    """One request so far; a message has its fields in this order.

    `dilation` is wall seconds per emulated second, 0 in virtual time. `ranks` computed it, in
    order; `chips` made the last rank. Joules are its share of steps, split at its first token.
    """

    dilation: float
    ranks: tuple[int, ...] = ()
    chips: tuple[int, ...] = ()
    prefill_chip_joules: float = 0.0
    prefill_facility_joules: float = 0.0
    decode_chip_joules: float = 0.0
    decode_facility_joules: float = 0.0

    @classmethod
    def of_output(cls, output: Any) -> Self | None:
        """The trace in an EngineCoreOutput; None without one."""
        params = output.kv_transfer_params
        if not params or TRACE_KEY not in params:
            return None
        return cls(*params[TRACE_KEY])

    def message(self) -> tuple[Any, ...]:
        """A copy for another process, which later steps do not change."""
        return (  # every field; `astuple` would copy each, and costs a step 20 times as much
            self.dilation,
            self.ranks,
            self.chips,
            self.prefill_chip_joules,
            self.prefill_facility_joules,
            self.decode_chip_joules,
            self.decode_facility_joules,
        )

    @property
    def chip_joules(self) -> float:
        """Of the whole request."""
        return self.prefill_chip_joules + self.decode_chip_joules

    @property
    def facility_joules(self) -> float:
        """Of the whole request."""
        return self.prefill_facility_joules + self.decode_facility_joules

    def at(self, rank: int, chips: tuple[int, ...]) -> None:
        """Note that `chips`, which make `rank`, compute it."""
        self.chips = chips
        if not self.ranks or self.ranks[-1] != rank:
            self.ranks = (*self.ranks, rank)
