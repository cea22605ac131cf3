"""Factors of real stacks that a fit learns, and the calibration that they make.

Seven are shared, two belong to each machine and two to each serving framework; unmeasured ones have
multipliers of 1, ageing 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Final

from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.figure import Figure, NamedFigures

MONTHS_MAX: Final = 7.0
"""Ageing is fitted to software of so many months; older software counts as this old."""
_SHARE_MAX: Final = 1.0
_TENSOR_SHARE_MAX: Final = 0.95  # assumed: no stack's large products reach more of the peak

NAMED_CONSTANTS: Final[dict[str, Figure]] = {
    "exchange_share": Figure(
        1.0,
        "of peak",
        "assumed: kernels of the exchange move bytes at the links' rate, as DeepEP's own "
        "curve shows; rows that were measured exchange too little to tell",
    ),
    "prefill_step_ns": Figure(
        0.0,
        "ns",
        "assumed: a step of prompts alone costs what its work does; a fitted 58 ms a step "
        "made the TPOT of held-out rows worse on every machine",
    ),
    "step_ns": Figure(
        0.5e6,
        "ns",
        "assumed: half a millisecond of scheduling and sampling that asynchronous engines "
        "do not hide; multiplied by the framework's overhead",
    ),
    "request_ns": Figure(
        20e3,
        "ns",
        "assumed: 20 us a sequence and step, preparing and handing out its token; "
        "multiplied by the framework's overhead",
    ),
    "front_end_request_ns": Figure(
        50e6, "ns", "assumed: 50 ms a request for HTTP, tokenising and routing, and the client"
    ),
    "front_end_token_ns": Figure(
        50e3,
        "ns",
        "assumed: 50 us a token to detokenise it and write it to a stream; it delays the "
        "client's view of a token, and no step",
    ),
    "turn_taking": Figure(
        0.5,
        "1 / exponent",
        "assumed: the root of the sum of squares, between perfect overlap and none",
    ),
}


_IN_LAYER_NS: Final = Figure(
    0.0,
    "ns",
    "not told apart from layer_ns by the fit: 58 of the 61 layers that were measured have experts",
)


def _times(factor: float, figure: Figure) -> Figure:
    return replace(figure, value=factor * figure.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFactors:
    """Multiplies the shared shares: HBM's; the matrix engine's and the links'."""

    memory: float = 1.0
    compute: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkFactors:
    """Multiplies overheads, which grow exponentially with the software's age in months."""

    overhead: float = 1.0
    ageing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFactors:
    """The factors of one fit; `source` gives its data, date and method.

    Attributes:
        memory_share, tensor_share, link_share, layer_ns: see `Calibration`.
        collective_ns: of a collective, for each doubling of its chips.
        fp4_overhead: multiplies overheads with experts in 4 bits.
        acceptance: probability that a drafted token is right if those before it were.
    """

    name: str
    source: str
    memory_share: float
    tensor_share: float
    link_share: float
    layer_ns: float
    collective_ns: float
    fp4_overhead: float
    acceptance: float
    machines: Mapping[str, MachineFactors]
    frameworks: Mapping[str, FrameworkFactors]

    def calibration(
        self, machine: str, framework: str | None = None, *, months: float = 0.0, fp4: bool = False
    ) -> Calibration:
        """The calibration of `framework`, `months` old, on `machine`; defaults for unknown ones."""
        on = self.machines.get(machine, MachineFactors())
        by = self.frameworks.get(framework or "", FrameworkFactors())
        age = min(max(months, 0.0), MONTHS_MAX)
        overhead = by.overhead * exp(by.ageing * age)
        overhead *= self.fp4_overhead if fp4 else 1.0
        constants = NAMED_CONSTANTS
        return replace(
            ROOFLINE,
            name=self.name,
            memory_share=self._share(min(_SHARE_MAX, self.memory_share * on.memory)),
            tensor_share=self._share(min(_TENSOR_SHARE_MAX, self.tensor_share * on.compute)),
            link_share=self._share(min(_TENSOR_SHARE_MAX, self.link_share * on.compute)),
            exchange_share=constants["exchange_share"],
            collective_ns=self._time(overhead * self.collective_ns),
            step_ns=_times(overhead, constants["step_ns"]),
            layer_ns=self._time(overhead * self.layer_ns),
            expert_layer_ns=_IN_LAYER_NS,
            request_ns=_times(overhead, constants["request_ns"]),
            prefill_step_ns=constants["prefill_step_ns"],
            front_end_request_ns=constants["front_end_request_ns"],
            front_end_token_ns=constants["front_end_token_ns"],
            turn_taking=constants["turn_taking"],
        )

    def _share(self, value: float) -> Figure:
        return Figure(value, "of peak", self.source)

    def _time(self, value: float) -> Figure:
        return Figure(value, "ns", self.source)

    def figures(self) -> NamedFigures:
        """Every factor by name, with its source; then the constants that were not fitted."""
        units = {"memory_share": "of peak", "tensor_share": "of peak", "link_share": "of peak"}
        units |= {"layer_ns": "ns", "collective_ns": "ns per doubling of chips"}
        units |= {"fp4_overhead": "x", "acceptance": "probability"}
        named = [
            (name, Figure(getattr(self, name), unit, self.source)) for name, unit in units.items()
        ]
        for machine, on in self.machines.items():
            for name in ("memory", "compute"):
                figure = Figure(getattr(on, name), "x", self.source)
                named.append((f"{machine} {name}", figure))
        for framework, by in self.frameworks.items():
            for name, unit in (("overhead", "x"), ("ageing", "1/month")):
                figure = Figure(getattr(by, name), unit, self.source)
                named.append((f"{framework} {name}", figure))
        return (*named, *NAMED_CONSTANTS.items())
