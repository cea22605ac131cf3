"""Calibration of real stacks against a roofline: efficiencies and overheads, with sources."""

from dataclasses import dataclass, replace
from typing import Final, Self

from emulator.errors import ConfigError
from emulator.specs.figure import Figure, NamedFigures, figures_of

ENGINE_OVERHEADS: Final = ("collective_ns", "step_ns", "layer_ns", "expert_layer_ns", "request_ns")
"""Those that the engine's software adds to its kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Shares of peak rates in (0, 1], and overheads of at least zero; raises ConfigError otherwise.

    Attributes:
        tensor_share: of the matrix engine's rate, in large products.
        training_share: the same, in the larger products of training.
        memory_share: of the HBM rate, when weights and KV stream.
        link_share: of the links' rate, in collectives inside a rank and transfers of weights and
            KV.
        exchange_share: of the links' rate, in dispatch and combine of routed experts.
        exchange_ns: launching and synchronising each dispatch or combine.
        store_share, store_ns: the same inside a scale-up domain where cores store rows into each
            other's memory; None where they move there as they do between domains.
        computing_share: of the cores, which compute prompts while the others move the tokens of
            another half batch.
        collective_ns: launching and synchronising each other collective, for every doubling of its
            chips.
        step_ns: each engine step: scheduling, preparing inputs, sampling, output.
        layer_ns: each layer: launches and small operations between the products.
        expert_layer_ns: each layer with routed experts, beside `layer_ns`: gating, permuting.
        expert_launch_ns: each expert of a chip in each layer of a training job, for the products of
            one direction (forward; gradients of inputs; gradients of weights): the host launches
            them one by one, and waits for the counts of tokens before.
        request_ns: each running request in each step.
        prefill_step_ns: each step with prompt tokens, beside `step_ns`.
        front_end_request_ns: reading, tokenising and handing over each request; delays no step.
        front_end_token_ns: each token from the engine to the client; delays no step.
        fp4_overhead: multiplies overheads of models with experts in 4 bits.
        draft_overhead: multiplies overheads of steps of an engine whose drafts a module makes.
        turn_taking: from 0, where a phase's engines overlap perfectly and the busiest counts, to 1,
            where their times add up; between, the norm of their times with exponent 1 /
            turn_taking: 0.5 is the root of the sum of squares.
    """

    name: str
    tensor_share: Figure
    training_share: Figure
    memory_share: Figure
    link_share: Figure
    exchange_share: Figure
    exchange_ns: Figure
    computing_share: Figure
    collective_ns: Figure
    step_ns: Figure
    layer_ns: Figure
    expert_layer_ns: Figure
    expert_launch_ns: Figure
    request_ns: Figure
    prefill_step_ns: Figure
    front_end_request_ns: Figure
    front_end_token_ns: Figure
    fp4_overhead: Figure
    draft_overhead: Figure
    turn_taking: Figure
    store_share: Figure | None = None
    store_ns: Figure | None = None

    def __post_init__(self) -> None:
        for label, figure in self.figures():
            if label.endswith("_share") and not 0 < figure.value <= 1:
                raise ConfigError(f"{self.name}.{label}", figure.value, "above 0, at most 1")
            if label.endswith("_ns") and figure.value < 0:
                raise ConfigError(f"{self.name}.{label}", figure.value, "at least 0")
        if not 0 <= self.turn_taking.value <= 1:
            raise ConfigError(f"{self.name}.turn_taking", self.turn_taking.value, "0 to 1")
        if (self.store_share is None) != (self.store_ns is None):
            one = "store_ns" if self.store_share is None else "store_share"
            raise ConfigError(f"{self.name}.{one}", "alone", "store_share and store_ns, or neither")

    def of_work(self, *, fp4: bool, drafts: bool) -> Self:
        """The overheads of a model with experts in 4 bits, of steps with drafts: multiplied in."""
        factor = (self.fp4_overhead.value if fp4 else 1.0) * (
            self.draft_overhead.value if drafts else 1.0
        )
        return replace(
            self,
            **{
                name: replace(getattr(self, name), value=factor * getattr(self, name).value)
                for name in ENGINE_OVERHEADS
            },
            fp4_overhead=_same(_MULTIPLIED),
            draft_overhead=_same(_MULTIPLIED),
        )

    def beside_exchanges(self) -> Self:
        """With the matrix engines of the computing cores alone."""
        left = self.computing_share.value * self.tensor_share.value
        return replace(self, tensor_share=replace(self.tensor_share, value=left))

    def inside_a_domain(self) -> Self:
        """With exchanges that leave no scale-up domain."""
        share, start = self.store_share or self.exchange_share, self.store_ns or self.exchange_ns
        return replace(
            self, exchange_share=share, exchange_ns=start, store_share=None, store_ns=None
        )

    @property
    def stores_slower(self) -> float:
        """How many times as long a byte takes inside a domain as the share of links between
        domains would have it take.
        """
        share = self.store_share or self.exchange_share
        return self.exchange_share.value / share.value

    def in_training(self) -> Self:
        """Of a training job's kernels. Assumed: its exchanges reach what its collectives reach, and
        start as between domains inside one too, as the constants of training were fitted.
        """
        return replace(
            self,
            tensor_share=self.training_share,
            exchange_share=self.link_share,
            store_share=None,
            store_ns=None,
        )

    def figures(self) -> NamedFigures:
        """Every figure by its name."""
        return figures_of(self)


_NOT_COUNTED: Final = "a roofline counts none"
_MULTIPLIED: Final = "multiplied into the overheads"
_PEAK: Final = "a roofline reaches the peak"


def _share() -> Figure:
    return Figure(1.0, "of peak", _PEAK)


def _none() -> Figure:
    return Figure(0.0, "ns", _NOT_COUNTED)


def _same(source: str) -> Figure:
    return Figure(1.0, "x", source)


ROOFLINE: Final = Calibration(
    name="roofline",
    tensor_share=_share(),
    training_share=_share(),
    memory_share=_share(),
    link_share=_share(),
    exchange_share=_share(),
    exchange_ns=_none(),
    computing_share=_share(),
    collective_ns=_none(),
    step_ns=_none(),
    layer_ns=_none(),
    expert_layer_ns=_none(),
    expert_launch_ns=_none(),
    request_ns=_none(),
    prefill_step_ns=_none(),
    front_end_request_ns=_none(),
    front_end_token_ns=_none(),
    fp4_overhead=_same(_NOT_COUNTED),
    draft_overhead=_same(_NOT_COUNTED),
    turn_taking=Figure(0.0, "1 / exponent", "a roofline overlaps perfectly"),
)
"""The roofline alone, which no stack can beat."""
