"""The shared options of `plan`, `day`, `pareto` and `power`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from emulator.errors import ConfigError
from loadgen.option_values import some_duration_s
from loadgen.workloads.drawn_defaults import REQUESTS, SEED
from reporting.data_forms import json_text
from serving.settings import CostModelOptions, MachineOptions
from serving.traffic.engine_limits import HBM_SHARE
from startup.typed_options import REQUIRED, option

if TYPE_CHECKING:
    import altair as alt
    import numpy as np
    import numpy.typing as npt

    from emulator.power.token_cost import Prices
    from emulator.specs.rack_power import Season
    from emulator.specs.system import SystemSpec
    from reporting.document import ReportDocument
    from serving.analysis.compare.price_file import PriceFile
    from serving.analysis.steady_state.request_shape import RequestShape
    from serving.analysis.steady_state.sweep import Sweep
    from serving.simulator import SimulationWorkers
    from serving.traffic.engine_limits import SchedulerLimits

    Int64s = npt.NDArray[np.int64]

Word = TypeVar("Word", bound=StrEnum)
Found = TypeVar("Found")

_PARTITION: Final = ("chips", "tp", "ep", "lnc")
PRINTED: Final = "-"
"""Where `--json` alone writes."""
_USD: Final[Mapping[str, Any]] = {"metavar": "USD"}


@dataclass(frozen=True, kw_only=True)
class SeasonOptions:
    """The weather for cooling."""

    GROUP = "machine"

    season: str = option("peak", "the weather: peak, summer, spring-autumn, winter", metavar="NAME")

    def season_of(self) -> Season:
        """The season; raises ConfigError."""
        from emulator.specs.rack_power import Season

        return one_of(Season, "season", self.season)


@dataclass(frozen=True, kw_only=True)
class PartitionSweepOptions(CostModelOptions, SeasonOptions):
    """The model, the partitions to try, and terms of HBM and power."""

    GROUP = "what to try: by default everything that fits"

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    chips: str | None = option(None, "chips of one replica", metavar="N,...")
    tp: str | None = option(None, "chips of a rank", metavar="N,...")
    ep: str | None = option(None, "chips of an expert group", metavar="N,...")
    lnc: str | None = option(
        None,
        "physical cores of a logical one; an announced LNC only when it is named",
        metavar="N,...",
    )
    attention_split: str | None = option(
        None,
        "what a chip's logical cores divide of requests that decode: heads, batch, sequence",
        metavar="NAME,...",
    )
    precision: str | None = option(
        None, "of weights: bf16, fp8, mxfp8, mxfp4, w4a8, nvfp4, stored", metavar="NAME,..."
    )
    gpu_memory_utilization: float = option(HBM_SHARE, "share of HBM to use", metavar="SHARE")

    def sweep(self, system: SystemSpec, shape: RequestShape) -> Sweep:
        """The sweep of `system` for requests of `shape`; raises ConfigError."""
        from emulator.memory.chip_contents import HbmTerms
        from emulator.specs.attention_split import AttentionSplit
        from emulator.specs.models import model_by_name
        from emulator.specs.overlap import Overlap
        from emulator.specs.shipped_fits import calibration_for
        from serving.analysis.steady_state.partitions import PartitionFilter
        from serving.analysis.steady_state.step_assumptions import StepAssumptions
        from serving.analysis.steady_state.sweep import Sweep

        asked: dict[str, Any] = {
            name: whole_numbers(name, getattr(self, name)) for name in _PARTITION
        }
        splits = self.attention_split.split(",") if self.attention_split else ()
        asked["attention_split"] = tuple(map(AttentionSplit.named, splits))
        return Sweep(
            system=system,
            model=model_by_name(self.model),
            shape=shape,
            asked=PartitionFilter(**asked),
            precisions=tuple(self.precision.split(",")) if self.precision else (),
            terms=HbmTerms(utilization=self.gpu_memory_utilization),
            assumptions=StepAssumptions(
                overlap=one_of(Overlap, "overlap", self.overlap),
                calibration=calibration_for(system.chip.name, name=self.calibration),
            ),
            routing=self.routing or "uniform",
            season=self.season_of(),
        )


def whole_numbers(name: str, text: str | None) -> tuple[int, ...]:
    """Read `1,2,4`; raises ConfigError."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(name, text, "whole numbers, as 1,2,4") from None


def one_of(kind: type[Word], field: str, value: str) -> Word:
    """The word of `kind`; raises ConfigError for another."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(field, value, f"one of {', '.join(map(str, kind))}") from None


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions(PartitionSweepOptions, MachineOptions):
    """Simulated replicas of one machine."""

    def machine(self) -> SystemSpec:
        """The machine under its assumptions; raises ConfigError."""
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.systems import system_by_name

        return with_assumptions(system_by_name(self.system), self.assumptions)

    def mean_sweep(
        self,
        prompt_tokens: Int64s,
        output_tokens: Int64s,
        schedulers: SchedulerLimits,
        *,
        system: SystemSpec | None = None,
    ) -> Sweep:
        """The sweep for requests of mean lengths, in one precision; raises ConfigError.

        `system` stands in for the options' own machine.
        """
        from emulator.specs.precisions import as_stored_or_narrowest
        from serving.analysis.steady_state.request_shape import RequestShape

        system = system or self.machine()
        shape = RequestShape(
            prompt_tokens=max(1, round(float(prompt_tokens.mean()))),
            output_tokens=max(1, round(float(output_tokens.mean()))),
            batched_tokens_max=schedulers.max_num_batched_tokens,
        )
        sweep = self.sweep(system, shape)
        stored = as_stored_or_narrowest(system.chip, sweep.model)
        return replace(sweep, precisions=sweep.precisions or (stored,))


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """Prices; none is built in."""

    GROUP = "prices"

    chip_hour_dollars: float | None = option(None, "an hour of a chip", "--price-chip-hour", **_USD)
    system_hour_dollars: float | None = option(
        None, "or an hour of an UltraServer", "--price-hour", **_USD
    )
    kwh_dollars: float | None = option(None, "a kWh at the utility's meter", "--price-kwh", **_USD)

    def prices(self) -> Prices | None:
        """None without a given price; raises ConfigError."""
        from emulator.power.token_cost import Prices

        names = ("chip_hour_dollars", "system_hour_dollars", "kwh_dollars")
        given = {name: getattr(self, name) for name in names}
        return Prices(**given) if any(value is not None for value in given.values()) else None


@dataclass(frozen=True, kw_only=True)
class PriceFileOptions(PriceOptions):
    """Prices, or a file of them."""

    price_file: Path | None = option(
        None,
        "or a TOML file of prices by system, as deploy/prices/example.toml",
        "--prices",
    )
    price_term: Literal["on_demand", "reserved"] = option("on_demand", "which of a file's prices")
    gco2_per_kwh: float | None = option(
        None, "gCO2 of a kWh at the utility's meter", "--gco2-per-kwh", metavar="G"
    )

    def price_list(self) -> PriceFile | None:
        """The file; raises ConfigError, also for other prices beside it."""
        from serving.analysis.compare.price_file import read_price_file

        if self.price_file is None:
            return None
        names = ("chip_hour_dollars", "system_hour_dollars", "kwh_dollars", "gco2_per_kwh")
        check_absent(self, names, expected="nothing beside --prices")
        return read_price_file(self.price_file)

    def prices_on(self, system: str) -> Prices | None:
        """Those of a machine of the catalog; raises ConfigError for one that the file lacks."""
        from serving.analysis.compare.price_file import PriceTerm

        listed = self.price_list()
        if listed is None:
            return self.prices()
        return listed.required_prices_of(system, PriceTerm(self.price_term))

    def grid_gco2_per_kwh(self) -> float | None:
        """The option's or the file's; None without one. Raises ConfigError below 0."""
        listed = self.price_list()
        if listed is not None:
            grid = listed.grid_gco2_per_kwh
            return None if grid is None else grid.value
        given = self.gco2_per_kwh
        if given is not None and not 0 <= given < float("inf"):
            raise ConfigError("gco2-per-kwh", given, "at least 0")
        return given


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """The form of the answer."""

    json: str | None = option(
        None,
        "print JSON, in base units, for the text; to FILE, if one is named, beside the text",
        nargs="?",
        const=PRINTED,
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Pictures of the answer."""

    plot: tuple[Path, ...] = option((), "write a picture: .png, .svg or .html; may be given again")

    def check_plots(self) -> None:
        """Raise ConfigError for a path that no picture can be written to."""
        for path in self.plot:
            from serving.analysis.chart_file import check_chart_path

            check_chart_path(path, field="plot")

    def write_plots(self, chart: Callable[[], alt.TopLevelMixin]) -> None:
        """Write those asked for, and say so; raises ConfigError."""
        for path in self.plot:
            from serving.analysis.chart_file import write_chart

            write_chart(chart(), path, field="plot")
            say(f"picture: {path}")


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The answer as a page."""

    html: Path | None = option(None, "write figures and charts as a page that needs no network")

    def check_page(self) -> None:
        """Raise ConfigError for a path that no page can be written to."""
        if self.html is not None:
            if self.html.suffix.lower() != ".html":
                raise ConfigError("html", self.html, "a path that ends in .html")
            check_folder("html", self.html)

    def write_page(self, page: Callable[[], ReportDocument]) -> None:
        """Write it if it was asked for, and say so; raises ConfigError."""
        if self.html is None:
            return
        from reporting.html import to_html

        text = to_html(page())
        try:
            self.html.write_text(text, encoding="utf-8")
        except OSError as error:
            expected = f"a path to write to ({error.strerror})"
            raise ConfigError("html", self.html, expected) from error
        say(f"page: {self.html}")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Processes that share the work."""

    GROUP = "where it is computed; results do not depend on it"

    processes: int | None = option(
        None, "processes of this machine (default: one a core)", one_of="workers"
    )
    ray_address: str | None = option(
        None,
        "the CPUs of a Ray cluster with this code: host:port, auto, or local for one of its own",
        metavar="ADDRESS",
        one_of="workers",
    )

    def __post_init__(self) -> None:
        check_least("processes", self.processes, 1)

    def workers(self) -> SimulationWorkers:
        """They start with the `with`."""
        from serving.simulator import SimulationWorkers

        count = self.processes or os.cpu_count() or 1
        return SimulationWorkers(count, ray_address=self.ray_address)


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(JsonOptions, WorkerOptions):
    """Length and processes of simulations."""

    GROUP = "simulation"

    requests: int = option(REQUESTS, "to judge by")
    seed: int = option(SEED, "of arrivals and lengths")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("seed", self.seed, 0)
        check_outputs(self)


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """How long simulations may take."""

    GROUP = SimulationOptions.GROUP

    budget_s: float = option(
        60.0,
        "time for the simulations of a search: when it is over, what was found is the answer "
        "(default: 60s)",
        type=some_duration_s,
        metavar="TIME",
    )


def check_least(name: str, value: int | None, least: int) -> None:
    """Raise ConfigError, with the option's name, for a value below `least`."""
    if value is not None and value < least:
        raise ConfigError(name.replace("_", "-"), value, f"at least {least}")


def check_folder(name: str, path: Path) -> None:
    """Raise ConfigError for a file in a folder that does not exist, before the work."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(name, path, "a path in a folder that exists")


def check_outputs(options: JsonOptions) -> None:
    """Raise ConfigError for a file of JSON, a picture or a page that cannot be written."""
    if isinstance(options, PlotOptions):
        options.check_plots()
    if isinstance(options, PageOptions):
        options.check_page()
    if options.json not in (None, PRINTED):
        check_folder("json", Path(options.json))


def print_answer(lines: Iterable[str], data: Callable[[], object], *, json: str | None) -> None:
    """Print `lines`, or `data` as JSON, as `JsonOptions` says; raises ConfigError for its file."""
    if json != PRINTED:
        print("\n".join(lines))
    if json is not None:
        write_json(json_text(data()), json)


def write_json(text: str, where: str) -> None:
    """To a file, or standard output for `-`; raises ConfigError."""
    if where == PRINTED:
        print(text)
        return
    try:
        Path(where).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("json", where, f"a path to write to ({error.strerror})") from error


def check_absent(options: object, names: Iterable[str], *, expected: str) -> None:
    """Raise ConfigError for the first of `names` that was given: it would silently do nothing."""
    for name in names:
        value = getattr(options, name)
        if value is not None:
            raise ConfigError(name.replace("_", "-"), value, expected)


def interruptible(
    work: Callable[..., Found], asked: object, *, options: WorkerOptions, ended: str
) -> Found:
    """Run `work` with progress on stderr; says `ended` when interrupted."""
    try:
        with options.workers() as workers:
            return work(asked, workers=workers, progress=say)
    except KeyboardInterrupt:
        say(ended)
        raise


@contextmanager
def interrupted_by(caught: list[int]) -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise KeyboardInterrupt, and are noted in `caught`."""

    def interrupt(number: int, frame: object) -> None:
        del frame
        caught.append(number)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(line: str) -> None:
    """Print to stderr."""
    print(line, file=sys.stderr, flush=True)
