"""Figures of the catalog and the calibration behind the terms of a step."""

from collections.abc import Iterator

import numpy as np

from emulator.arrays import Int64s
from emulator.fabric.tiers import Tier, tiers_of
from emulator.specs.calibration import ENGINE_OVERHEADS
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.system import SystemSpec
from emulator.timing.product_rate import ProductRate, flops_per_ns, products_by_rate
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_terms import StepTerms
from emulator.units import NS_PER_S


class WaterfallFigures:
    """Figures of one cost model's steps, by what they time."""

    def __init__(self, model: StepCostModel, terms: StepTerms) -> None:
        chip = model.system.chip
        self.chip = chip
        self.dtype = model.model.dtype
        self.rates = flops_per_ns(chip, model.model.dtype)
        self.dispatch_share = terms.dispatch_share
        self._given = model.given_calibration
        self._factors = model.overhead_factors
        stores = model.layout.exchanges_inside_a_domain and self._given.store_share is not None
        self.exchange_share, self.exchange_ns = (  # the constants' names
            ("store_share", "store_ns") if stores else ("exchange_share", "exchange_ns")
        )
        matrix = chip.matrix
        self.memory = _slower_memory(chip)
        launch = ("launch_ns", chip.launch_ns)
        start = ("dma_start_ns", chip.dma_start_ns)
        self.own: dict[str, NamedFigures] = {
            "ramp": (("ramp_ns", matrix.ramp_ns), ("ramp_share", matrix.ramp_share)),
            "core_collectives": (("dma_bytes_per_s", chip.dma_bytes_per_s), start),
            "fill_drain": (("fill_drain_ns", matrix.fill_drain_ns),),
            "dma_start": (start,),
            "kernel_launch": (launch,),
            "graph_launch": (launch,),
        }
        physical = model.layout.physical
        tp = model.partition.tp
        self.rank_links = _link_figures(model.system, physical[:tp])
        self.group_links = _link_figures(
            model.system, physical[: max(1, model.partition.expert_group)]
        )
        self.latency: NamedFigures = (start, ("hop_ns", model.system.hop_ns))

    def constants(self, name: str, used: Figure) -> NamedFigures:
        """A calibration's constant as given, and those that are multiplied into what is `used`."""
        given: Figure = getattr(self._given, name)
        factors: tuple[str, ...] = ()
        if name in ENGINE_OVERHEADS:
            factors = self._factors
        elif used.value != given.value:  # beside the cores that move tokens
            factors = ("computing_share",)
        return ((name, given), *((each, getattr(self._given, each)) for each in factors))

    def other_engine(self, engine: str) -> tuple[str, Figure]:
        """The rate of vector, scalar or GPSIMD engines."""
        chip = self.chip
        if engine == "vector":
            return "vector_flops_per_s", chip.vector_flops_per_s
        if engine == "gpsimd" and chip.gpsimd_ops_per_s is not None:
            return "gpsimd_ops_per_s", chip.gpsimd_ops_per_s
        return "scalar_ops_per_s", chip.scalar_ops_per_s

    def products(self) -> Iterator[tuple[int, str, NamedFigures]]:
        """Each product rate's place, format and figure."""
        for rate, dtype in products_by_rate(self.dtype).items():
            name = f"tensor_{dtype}_flops_per_s"
            figure = getattr(self.chip, name)
            if rate is ProductRate.SPARSE:
                sparse = self.chip.tensor_sparse_flops_per_s
                yield rate, "sparse bf16", (("tensor_sparse_flops_per_s", sparse or figure),)
                continue
            if figure is None:  # a wider format's rate
                value = float(self.rates[rate]) * NS_PER_S
                figure = Figure(value, "flop/s", f"arithmetic: {dtype} in the next wider format")
            yield rate, dtype, ((name, figure),)


def _slower_memory(chip: ChipSpec) -> NamedFigures:
    """Of the two that bound streaming, see `ChipSpec.memory_bytes_per_s`."""
    named = (("hbm_bytes_per_s", chip.hbm_bytes_per_s), ("dma_bytes_per_s", chip.dma_bytes_per_s))
    return (min(named, key=lambda each: each[1].value),)


def _link_figures(system: SystemSpec, physical: Int64s) -> NamedFigures:
    """Rates of the tiers between these chips, [chips], one per direction and chip."""
    names = {
        Tier.TRAY: "link_tray_bytes_per_s",
        Tier.BACKPLANE: "link_backplane_bytes_per_s",
        Tier.CROSS_RACK: "link_cross_rack_bytes_per_s",
        Tier.SCALE_OUT: "scale_out_bytes_per_s",
    }
    found = np.unique(tiers_of(system, physical)).tolist()
    named = ((name, getattr(system.chip, name)) for tier, name in names.items() if tier in found)
    return tuple((name, figure) for name, figure in named if figure is not None)
