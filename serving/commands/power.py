"""`ultraserve power`: where a system's watts go; tokens by the megawatt and by the dollar.

It computes from the catalog and starts nothing. Prices are the user's; none is built in.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.power_text import report_lines
from serving.commands.reading_argument import add_reading_argument

if TYPE_CHECKING:
    from emulator.power.efficiency import PowerEfficiency
    from emulator.power.power_state import PowerState
    from emulator.power.system_power import SystemPower
    from emulator.power.token_cost import Prices, TokenCost

_SEASONS: Final = ("peak", "summer", "spring-autumn", "winter")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedFigure:
    """One number behind the report, with where it comes from."""

    name: str
    value: float
    unit: str
    source: str

    @property
    def assumed(self) -> bool:
        """True when all of it, or a term of its arithmetic, is published by nobody."""
        return "assumed" in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBreakdown:
    """Everything that the command prints; `it_watts` and `total_watts` are the states' in order."""

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
    parser.add_argument(
        "--chips", type=int, metavar="N", help="of the system, with their share (default: all)"
    )
    parser.add_argument(
        "--season", choices=_SEASONS, default="peak", help="the weather (default: %(default)s)"
    )
    parser.add_argument(
        "--busy",
        metavar="ENGINE=SHARE,...",
        help="one state instead of the named ones, such as dma=0.8,tensor_fp8=0.2",
    )
    add_reading_argument(parser, default=[])
    parser.add_argument(
        "--pue", type=float, metavar="RATIO", help="of your site on its worst day, at least 1"
    )
    for kind in ("output", "input"):
        parser.add_argument(
            f"--{kind}-tokens-per-s",
            type=float,
            metavar="N",
            help="of all the chips together; needs --busy",
        )
    parser.add_argument("--chip-hour", type=float, metavar="DOLLARS", help="price of a chip")
    parser.add_argument("--system-hour", type=float, metavar="DOLLARS", help="or of the system")
    parser.add_argument("--kwh", type=float, metavar="DOLLARS", help="price of energy")
    parser.add_argument(
        "--sources", action="store_true", help="print where each figure comes from too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0. Raises ConfigError for a wrong argument."""
    report = power_report(args)
    lines = report_lines(report, sources=args.sources)
    print(json_text(report) if args.json else "\n".join(lines))
    return 0


def power_report(args: argparse.Namespace) -> PowerBreakdown:
    """The figures that the arguments ask for; raises ConfigError."""
    from emulator.power.power_state import NAMED_STATES, power_state
    from emulator.power.system_power import SystemPower
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.figure import Figure
    from emulator.specs.rack_power import Season
    from emulator.specs.systems import system_by_name

    system = with_assumptions(system_by_name(args.system), args.reading)
    if args.pue is not None:
        if not 1 <= args.pue < float("inf"):
            raise ConfigError(field="pue", value=args.pue, expected="at least 1")
        own = Figure(value=args.pue, unit=system.pue.unit, source="set by the user")
        system = replace(system, pue=own)
    power = SystemPower(system)
    chips = power.system.chips.count if args.chips is None else args.chips
    season = Season(args.season)
    asked = NAMED_STATES if args.busy is None else {"given": parse_busy(args.busy)}
    states = tuple(
        power_state(power, busy, name=name, chips=chips, season=season)
        for name, busy in asked.items()
    )
    tokens, cost = _tokens(args, power, chips, states)
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
    )


def _figures(power: SystemPower) -> tuple[SourcedFigure, ...]:
    """Joules of work on the chip, then what the system has beside its chips."""
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
    """Engines' busy shares from "ENGINE=SHARE,..."; raises ConfigError for another form."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        engine, _, share = item.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            expected = "ENGINE=SHARE, such as dma=0.8"
            raise ConfigError(field="busy", value=item, expected=expected) from None
        if engine in shares:
            raise ConfigError(field="busy", value=engine, expected="each engine once")
        shares[engine] = value
    return shares


def _tokens(
    args: argparse.Namespace, power: SystemPower, chips: int, states: tuple[PowerState, ...]
) -> tuple[tuple[PowerEfficiency, ...], TokenCost | None]:
    """Yardsticks of the one state, where tokens are given; the cost, where prices are too."""
    from emulator.power.efficiency import TokenRates, tokens_per_megawatt
    from emulator.power.token_cost import token_cost

    prices = _prices(args)
    if args.output_tokens_per_s is None and args.input_tokens_per_s is None:
        if prices is not None:
            expected = "tokens to divide by, of output or of input"
            raise ConfigError(field="output-tokens-per-s", value="none", expected=expected)
        return (), None
    if args.busy is None:
        raise ConfigError(
            field="busy", value="none", expected="how busy the engines are at that many tokens"
        )
    rates = TokenRates(
        output_tokens_per_s=args.output_tokens_per_s or 0.0,
        input_tokens_per_s=args.input_tokens_per_s or 0.0,
    )
    drawn = states[0].facility.total_watts
    tokens = tokens_per_megawatt(power, rates, chips=chips, drawn_watts=drawn)
    if prices is None:
        return tokens, None
    return tokens, token_cost(prices, rates, system=power.system, chips=chips, drawn_watts=drawn)


def _prices(args: argparse.Namespace) -> Prices | None:
    from emulator.power.token_cost import Prices

    if args.chip_hour is None and args.system_hour is None and args.kwh is None:
        return None
    return Prices(
        chip_hour_dollars=args.chip_hour,
        system_hour_dollars=args.system_hour,
        kwh_dollars=args.kwh,
    )
