"""What the engine tells of a request to its spans: where it was computed, what it has drawn.

It travels in an output's `kv_transfer_params`, beside the names of the weights: vLLM hands these on
to the API's process, and nothing here transfers KV.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

TRACE_KEY: Final = "ultraserve_trace"
"""Of an output's `kv_transfer_params`, where requests are traced."""


@dataclass(slots=True)
class RequestTrace:
    """One request so far; a message has its fields in this order.

    `dilation` is of the clock, wall seconds per emulated second, 0 when time is virtual. `ranks`
    have computed tokens of it, in their order; `chips` made the last of them when it last computed.
    Joules are its share of the steps until its first token is made, and of those after it.
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
        """What an EngineCoreOutput says; None where it says nothing."""
        params = output.kv_transfer_params
        if not params or TRACE_KEY not in params:
            return None
        return cls(*params[TRACE_KEY])

    def message(self) -> tuple[Any, ...]:
        """What it is now, for another process; later steps do not change it."""
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
