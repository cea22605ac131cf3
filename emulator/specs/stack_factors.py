"""Factors of real stacks that a fit learns, and the calibration that they make.

Ten are shared, two belong to each generation of chips, and one to each release of a stack on a
generation; a chip of no measured generation has the shared ones alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import chip_by_name
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.systems import SYSTEMS

_SHARE_MAX: Final = 1.0
_TENSOR_SHARE_MAX: Final = 0.95  # assumed: no stack's large products reach more of the peak
_DEEPEP: Final = (
    "fitted to DeepEP's low-latency dispatches and combines over 8 to 64 GPUs: 380 of H100 and "
    "H200 (aiconfigurator's tables, with the same figures for both), and those of H800 that "
    "DeepEP publishes; charged between boxes alone, where (16 to 64) it is 4 to 9 % off"
)
_STORES: Final = (
    "fitted to DeepEP inside a box, three groups alike: 34 low-latency kernels of H100 "
    "(aiconfigurator's tables), 2 of H800 and 2 normal ones of H800 (DeepEP's README)"
)
_FITTED_DOMAIN: Final = 8
"""GPUs of the boxes that `_STORES` was fitted to."""
_TRAINING: Final = (
    "fitted to the 28 published training runs with known recipes (published_trainings); without "
    "any one machine or model 0.451 to 0.474 and 143 to 161 us"
)
_LAUNCHES: Final = (
    "that hosts launch each expert's products and wait for counts is in NVIDIA/TransformerEngine's "
    "issues 2453 and 2897"
)

NAMED_CONSTANTS: Final[dict[str, Figure]] = {
    "exchange_share": Figure(0.874, "of peak", _DEEPEP),
    "exchange_ns": Figure(17.5e3, "ns", _DEEPEP),
    "store_share": Figure(0.62, "of peak", _STORES),
    "store_ns": Figure(13.8e3, "ns", _STORES),
    "exchange_cores": Figure(
        20.0,
        "cores",
        "arXiv 2412.19437, section 3.2.2: 20 of an H800's 132 multiprocessors saturate NVLink and "
        "the network; assumed to hold on other GPUs",
    ),
    "prefill_step_ns": Figure(
        0.0, "ns", "assumed: a step of prompts alone costs what its work does, see DECISIONS 76"
    ),
    "training_share": Figure(0.461, "of peak", _TRAINING),
    "expert_launch_ns": Figure(0.153e6, "ns", f"{_TRAINING}; {_LAUNCHES}"),
    "step_ns": Figure(
        0.5e6,
        "ns",
        "assumed: half a millisecond of scheduling and sampling that asynchronous engines "
        "do not hide; multiplied by the generation's overhead",
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

SHARED_UNITS: Final[dict[str, str]] = {
    "memory_share": "of peak",
    "tensor_share": "of peak",
    "link_share": "of peak",
    "layer_ns": "ns",
    "request_ns": "ns",
    "collective_ns": "ns per doubling of chips",
    "front_end_request_ns": "ns",
    "fp4_overhead": "x",
    "draft_overhead": "x",
    "exchange_skew": "x",
}
"""Names of the shared factors, with their units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFactors:
    """Of chips that run the same compiled kernels: multiplies the matrix engine's share; the
    engine's overheads.
    """

    compute: float = 1.0
    overhead: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFactors:
    """The factors of one fit; `source` gives its data, date and method.

    Attributes:
        memory_share, tensor_share, link_share, layer_ns, request_ns, collective_ns,
            front_end_request_ns, fp4_overhead, draft_overhead: see `Calibration`.
        exchange_skew: how many times longer the measured deployments' exchanges take than even
            ones. Their routing is uneven, and nothing replicates busy experts; it belongs to their
            traffic, and to no calibration. Found after the other factors, which do not know that
            exchanges inside a box are stores.
        releases: by generation, what multiplies its overheads under a release of a stack, such as
            "sglang 0.5.12". It belongs to rows that name one; plans have the generation's own.
    """

    name: str
    source: str
    memory_share: float
    tensor_share: float
    link_share: float
    layer_ns: float
    request_ns: float
    collective_ns: float
    front_end_request_ns: float
    fp4_overhead: float
    draft_overhead: float
    exchange_skew: float
    generations: Mapping[str, GenerationFactors]
    releases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def release_overhead(self, chip: str, release: str) -> float:
        """What multiplies the generation's overheads; 1 for a release that was not measured on it.

        Raises ConfigError for a chip outside the catalog.
        """
        return self.releases.get(chip_by_name(chip).generation, {}).get(release, 1.0)

    def calibration(self, chip: str, *, release: str = "") -> Calibration:
        """Of a chip of the catalog, under a stack's release if it is known; raises ConfigError for
        another chip.
        """
        on = self.generations.get(chip_by_name(chip).generation, GenerationFactors())
        overhead = on.overhead * self.release_overhead(chip, release)
        constants = NAMED_CONSTANTS
        return replace(
            ROOFLINE,
            name=self.name,
            memory_share=self._share(min(_SHARE_MAX, self.memory_share)),
            tensor_share=self._share(min(_TENSOR_SHARE_MAX, self.tensor_share * on.compute)),
            training_share=_training_share(chip_by_name(chip)),
            link_share=self._share(min(_SHARE_MAX, self.link_share)),
            exchange_share=_of_exchanges("exchange_share", chip_by_name(chip)),
            exchange_ns=_of_exchanges("exchange_ns", chip_by_name(chip)),
            store_share=_of_stores("store_share", chip_by_name(chip)),
            store_ns=_of_stores("store_ns", chip_by_name(chip)),
            computing_share=_computing_share(chip_by_name(chip)),
            collective_ns=self._time(overhead * self.collective_ns),
            step_ns=replace(constants["step_ns"], value=overhead * constants["step_ns"].value),
            layer_ns=self._time(overhead * self.layer_ns),
            expert_layer_ns=_IN_LAYER_NS,
            expert_launch_ns=_expert_launch(chip_by_name(chip)),
            request_ns=self._time(overhead * self.request_ns),
            prefill_step_ns=constants["prefill_step_ns"],
            front_end_request_ns=self._time(self.front_end_request_ns),
            front_end_token_ns=constants["front_end_token_ns"],
            fp4_overhead=Figure(self.fp4_overhead, "x", self.source),
            draft_overhead=Figure(self.draft_overhead, "x", self.source),
            turn_taking=constants["turn_taking"],
        )

    def _share(self, value: float) -> Figure:
        return Figure(value, "of peak", self.source)

    def _time(self, value: float) -> Figure:
        return Figure(value, "ns", self.source)

    def figures(self) -> NamedFigures:
        """Every factor by name, with its source; then the constants that were not fitted."""
        named = [
            (name, Figure(getattr(self, name), unit, self.source))
            for name, unit in SHARED_UNITS.items()
        ]
        for generation, on in self.generations.items():
            for name in ("compute", "overhead"):
                figure = Figure(getattr(on, name), "x", self.source)
                named.append((f"{generation} {name}", figure))
        for generation, by_release in self.releases.items():
            for release, times in by_release.items():
                figure = Figure(times, "x", self.source)
                named.append((f"{generation} overhead, {release}", figure))
        return (*named, *NAMED_CONSTANTS.items())


def _of_exchanges(name: str, chip: ChipSpec) -> Figure:
    fitted = NAMED_CONSTANTS[name]
    if chip.dma_engines is None:
        return fitted
    on = f"assumed to hold on {chip.name}, whose DMA engines move rows as network cards do"
    return replace(fitted, source=f"{on}; {fitted.source}")


def _of_stores(name: str, chip: ChipSpec) -> Figure | None:
    if chip.dma_engines is not None:
        return None
    fitted = NAMED_CONSTANTS[name]
    own = [each for each in SYSTEMS.values() if each.chip.name == chip.name]
    widest = max((each.chips.count // each.units for each in own), default=_FITTED_DOMAIN)
    if widest <= _FITTED_DOMAIN:
        return fitted
    on = f"assumed to hold on {chip.name}, in whose domains of {widest} chips nothing was measured"
    return replace(fitted, source=f"{on}; {fitted.source}")


def _computing_share(chip: ChipSpec) -> Figure:
    moving = NAMED_CONSTANTS["exchange_cores"]
    if chip.dma_engines is not None:
        return Figure(1.0, "of cores", "none of the cores that compute moves tokens")
    return Figure(1 - moving.value / chip.cores.value, "of cores", moving.source)


def _training_share(chip: ChipSpec) -> Figure:
    fitted = NAMED_CONSTANTS["training_share"]
    if chip.dma_engines is None:
        return fitted
    return replace(fitted, source=f"assumed to hold on {chip.name}; {fitted.source}")


def _expert_launch(chip: ChipSpec) -> Figure:
    if chip.dma_engines is not None:
        return Figure(
            0.0, "ns", "assumed: a compiled step is one graph, and no host launches parts"
        )
    return NAMED_CONSTANTS["expert_launch_ns"]
