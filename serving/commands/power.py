"""`ultraserve power`: where a system's watts go; tokens by the megawatt and by the dollar.

Computes from the catalog and starts nothing. Prices are the user's; none is built in.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.analysis_options import PriceOptions, SeasonOptions
from serving.commands.power_text import report_lines
from serving.settings import AssumptionOptions
from startup.typed_options import add_options, option, read_options

if TYPE_CHECKING:
    from emulator.power.efficiency import PowerEfficiency
    from emulator.power.power_state import PowerState
    from emulator.power.system_power import SystemPower
    from emulator.power.token_cost import TokenCost


@dataclass(frozen=True, kw_only=True)
class PowerOptions(PriceOptions, SeasonOptions, AssumptionOptions):
    """Options of a system's power."""

    GROUP = ""

    json: bool = option(False, "print JSON, in base units")
    chips: int | None = option(None, "of the system, with their share (default: all)")
    busy: str | None = option(
        None,
        "one state instead of the named ones, such as dma=0.8,tensor_fp8=0.2",
        metavar="ENGINE=SHARE,...",
    )
    pue: float | None = option(None, "of your site on its worst day, at least 1", metavar="RATIO")
    output_tokens_per_s: float | None = option(
        None, "of all the chips together; needs --busy", "--output-tokens-per-s", metavar="N"
    )
    input_tokens_per_s: float | None = option(
        None, "of all the chips together; needs --busy", "--input-tokens-per-s", metavar="N"
    )
    sources: bool = option(False, "print where each figure comes from too")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedFigure:
    """One number behind the report, and its source."""

    name: str
    value: float
    unit: str
    source: str

    @property
    def assumed(self) -> bool:
        """True when it, or a term of its arithmetic, is unpublished."""
        return "assumed" in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBreakdown:
    """The printed figures; `it_watts` and `total_watts` are the states' in order."""

    system: str
    cooling: str | None
    chips: int
    season: str
    pue: float
    provisioned_watts: float
    chip_budget_watts: float
    chip_cap_watts: float
    states: tuple[PowerState, ...]
    it_watts: tuple[float, ...]
    total_watts: tuple[float, ...]
    figures: tuple[SourcedFigure, ...]
    tokens_per_megawatt: tuple[PowerEfficiency, ...] = ()
    cost: TokenCost | None = None
    assumptions: tuple[str, ...] = ()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `power` command."""
    parser = subparsers.add_parser(
        "power",
        help="print where a system's watts go, tokens/s/MW and dollars per million tokens",
        description="Print where a system's watts go: chips, hosts, trays, switches, fans, pumps, "
        "conversion and cooling, idle and busy. With tokens per second, print tokens/s/MW as "
        "provisioned, as drawn and all-in; with prices, dollars per million tokens.",
    )
    parser.add_argument("system", metavar="SYSTEM", help="see `ultraserve describe`")
    add_options(parser, PowerOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0. Raises ConfigError for a wrong argument."""
    options = read_options(PowerOptions, args)
    report = power_report(args.system, options)
    lines = report_lines(report, sources=options.sources)
    print(json_text(report) if args.json else "\n".join(lines))
    return 0


def power_report(name: str, options: PowerOptions) -> PowerBreakdown:
    """The figures by the arguments; raises ConfigError."""
    from emulator.power.power_state import NAMED_STATES, power_state
    from emulator.power.system_power import SystemPower
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.figure import Figure
    from emulator.specs.systems import system_by_name

    system = with_assumptions(system_by_name(name), options.assumptions)
    if options.pue is not None:
        if not 1 <= options.pue < float("inf"):
            raise ConfigError("pue", options.pue, "at least 1")
        own = Figure(value=options.pue, unit=system.pue.unit, source="set by the user")
        system = replace(system, pue=own)
    power = SystemPower(system)
    chips = power.system.chips.count if options.chips is None else options.chips
    season = options.season_of()
    asked = NAMED_STATES if options.busy is None else {"given": parse_busy(options.busy)}
    states = tuple(
        power_state(power, busy, name=state, chips=chips, season=season)
        for state, busy in asked.items()
    )
    tokens, cost = _tokens(options, power, chips, states)
    return PowerBreakdown(
        system=power.system.name,
        cooling=power.system.power.cooling.value if power.system.power else None,
        chips=chips,
        season=season.value,
        pue=power.pue(season),
        provisioned_watts=power.provisioned_watts(chips),
        chip_budget_watts=power.system.chip.budget_watts.value,
        chip_cap_watts=power.chip_cap_watts,
        states=states,
        it_watts=tuple(state.facility.it_watts for state in states),
        total_watts=tuple(state.facility.total_watts for state in states),
        figures=_figures(power),
        tokens_per_megawatt=tokens,
        cost=cost,
        assumptions=system.turned_switches(),
    )


def _figures(power: SystemPower) -> tuple[SourcedFigure, ...]:
    """Joules of the chip's work, then watts and PUE of the system."""
    from emulator.specs.work_energy import work_energy_of

    system = power.system
    chip, rack = system.chip, system.power
    named = (
        *((f"energy_{name}", figure) for name, figure in work_energy_of(chip).figures()),
        ("idle_watts", chip.idle_watts),
        ("budget_watts", chip.budget_watts),
        ("provisioned_watts", system.provisioned_watts),
        ("pue", system.pue),
        *(rack.figures() if rack else ()),
    )
    return tuple(
        SourcedFigure(name=name, value=figure.value, unit=figure.unit, source=figure.source)
        for name, figure in named
    )


def parse_busy(text: str) -> Mapping[str, float]:
    """Engines' busy shares from "ENGINE=SHARE,..."; raises ConfigError."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        engine, _, share = item.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            raise ConfigError("busy", item, "ENGINE=SHARE, such as dma=0.8") from None
        if engine in shares:
            raise ConfigError("busy", engine, "each engine once")
        shares[engine] = value
    return shares


def _tokens(
    options: PowerOptions, power: SystemPower, chips: int, states: tuple[PowerState, ...]
) -> tuple[tuple[PowerEfficiency, ...], TokenCost | None]:
    """Efficiencies of the single state, given tokens; the cost, given prices too."""
    from emulator.power.efficiency import TokenRates, tokens_per_megawatt
    from emulator.power.token_cost import token_cost

    prices = options.prices()
    if options.output_tokens_per_s is None and options.input_tokens_per_s is None:
        if prices is not None:
            expected = "tokens to divide by, of output or of input"
            raise ConfigError("output-tokens-per-s", "none", expected)
        return (), None
    if options.busy is None:
        raise ConfigError("busy", "none", "how busy the engines are at that many tokens")
    rates = TokenRates(
        output_tokens_per_s=options.output_tokens_per_s or 0.0,
        input_tokens_per_s=options.input_tokens_per_s or 0.0,
    )
    drawn = states[0].facility.total_watts
    tokens = tokens_per_megawatt(power, rates, chips=chips, drawn_watts=drawn)
    if prices is None:
        return tokens, None
    return tokens, token_cost(prices, rates, system=power.system, chips=chips, drawn_watts=drawn)
