"""One fleet for several models: each is planned on its share of the requests, all share machines.

A router sends each request to its model's replicas, so that a model has a random part of the
traffic, and its plan is that of the part alone, with what it has for a loss, and its outlook.
Replicas and units of pools of all models are then packed onto the fewest machines.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

from emulator.errors import ConfigError
from emulator.power.efficiency import TokenRates
from emulator.power.system_power import SystemPower
from emulator.power.token_cost import TokenCost
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.system import SystemSpec
from serving.analysis.plan.machine_packing import PackedMachines, packed
from serving.analysis.plan.night import HOURS
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_bill import BilledFleet, fleet_cost, meter_watts, scaled
from serving.analysis.plan.plan_outlook import (
    NO_OUTLOOK,
    NOTHING_ASKED,
    OutlookTerms,
    PlanOutlook,
    outlook_of,
)
from serving.analysis.plan.plan_question import PlanQuestion
from serving.simulator import THIS_PROCESS, SimulationWorkers

_LEAST_S: Final = 1e-3
"""Of a model that comes when the time is over: it is refused for that."""
_FORM: Final = "NAME=SHARE,..., such as deepseek-r1=0.7,gpt-oss-120b=0.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShares:
    """Models of a mix, and of each the share of the requests; shares add up to 1."""

    models: tuple[ModelSpec, ...]
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=WEIGHT,...`: a share is a weight over the sum of all.

        Raises ConfigError for an unknown model, one that is named twice, and a weight that is not
        above 0.
        """
        weights: dict[str, float] = {}
        for part in text.split(","):
            name, equals, weight = part.strip().partition("=")
            model = model_by_name(name.strip())
            if not equals:
                raise ConfigError("model", part, f"its share, too: {_FORM}")
            if model.name in weights:
                raise ConfigError("model", text, f"{model.name} once")
            try:
                weights[model.name] = float(weight)
            except ValueError:
                raise ConfigError("model", part, f"a number for its share: {_FORM}") from None
            if not 0 < weights[model.name] < float("inf"):
                raise ConfigError("model", part, "a share above 0")
        return cls(
            models=tuple(map(model_by_name, weights)),
            shares=tuple(weight / sum(weights.values()) for weight in weights.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    """A model's share of the requests, its plan as if it were alone, and what comes after it."""

    share: float
    plan: Plan
    outlook: PlanOutlook = NO_OUTLOOK

    @property
    def name(self) -> str:
        """The catalog's."""
        return self.plan.question.sweep.model.name

    @property
    def most_of_machine(self) -> int:
        """Replicas that a machine may hold at most, for its loss if one is asked for."""
        kept = self.plan.kept_loss
        most = None if kept is None else kept.most_of_machine
        return self.plan.replicas_per_machine if most is None else most


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMix:
    """The fleet: all models' plans, on one kind of machine, and which replicas stand together.

    Watts and dollars are sums over chips: those of replicas as in the models' plans, others idle.
    """

    models: tuple[MixedModel, ...]
    packing: tuple[PackedMachines, ...]  # replicas in the order of `models`

    @classmethod
    def of(cls, models: Sequence[MixedModel]) -> Self:
        """Packed."""
        counts = [each.plan.fleet.replicas for each in models]
        return cls(models=tuple(models), packing=_packing(models, counts))

    def machines_for(self, replicas: Sequence[int]) -> int:
        """The fewest that hold so many of each model."""
        return _machines(_packing(self.models, replicas))

    @property
    def system(self) -> SystemSpec:
        """The machine."""
        return self._fleets[0].system

    @property
    def machines(self) -> int:
        """Bought, without a spare."""
        return _machines(self.packing)

    @property
    def machines_apart(self) -> int:
        """If each model had machines of its own."""
        return sum(each.plan.machines for each in self.models)

    @property
    def machines_of_range(self) -> tuple[int, int] | None:
        """Of the sizes of all models' plans at both ends of the 80 % range of steps; None where one
        of them is not known.
        """
        ranges = [each.plan.range for each in self.models]
        fewest = [of.fewest for of in ranges if of is not None and of.fewest is not None]
        most = [of.most for of in ranges if of is not None and of.most is not None]
        if not len(fewest) == len(most) == len(ranges):
            return None
        return self.machines_for(fewest), self.machines_for(most)

    @property
    def chips(self) -> int:
        """Bought."""
        return self.machines * self.system.chips.count

    @property
    def chips_in_service(self) -> int:
        """At the peak."""
        return sum(fleet.chips_in_service for fleet in self._fleets)

    @property
    def free_chips(self) -> int:
        """Bought, and in service at no hour."""
        return self.chips - self.chips_in_service

    @property
    def free_chip_hours(self) -> int:
        """Of a day, of replicas that rest."""
        return sum(each.plan.night.free_chip_hours for each in self.models)

    @property
    def rates(self) -> TokenRates:
        """Of all models at their peaks."""
        return _sum([each.plan.rates for each in self.models])

    @property
    def provisioned_watts_per_machine(self) -> float:
        """Of the racks' budget."""
        return SystemPower(self.system).provisioned_watts(self.system.chips.count)

    @property
    def provisioned_watts(self) -> float:
        """Of the racks' budget of all machines."""
        return self.machines * self.provisioned_watts_per_machine

    @property
    def peak_drawn_watts(self) -> float:
        """At the utility's meter, with all models at their peaks at one time."""
        drawn = sum(fleet.peak_watts(fleet.chips_in_service) for fleet in self._fleets)
        return drawn + self._free_watts

    @property
    def mean_drawn_watts(self) -> float:
        """Over the day."""
        watt_hours = sum(
            each.plan.fleet.day_watt_hours(each.plan.night, each.plan.fleet.chips_in_service)
            for each in self.models
        )
        return watt_hours / HOURS + self._free_watts

    @property
    def day_cost(self) -> TokenCost | None:
        """Over the day, of all machines, by all models' tokens; None without prices."""
        return fleet_cost(
            self.system,
            self.models[0].plan.question.prices,
            _sum([scaled(each.plan.rates, each.plan.night.day.mean_share) for each in self.models]),
            chips=self.chips,
            drawn_watts=self.mean_drawn_watts,
        )

    @property
    def _fleets(self) -> list[BilledFleet]:
        return [each.plan.fleet for each in self.models]

    @property
    def _free_watts(self) -> float:
        one = self._fleets[0]
        return meter_watts(
            self.system, one.idle_chip_watts, chips=self.free_chips, season=one.season
        )


def plan_mix(
    questions: Sequence[tuple[float, PlanQuestion]],
    *,
    outlooks: Sequence[OutlookTerms] = (),
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Callable[[str], None] = lambda _: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> ModelMix:
    """Plan each model's question, all within the budget of the first; shares beside them.

    A model has an even part of the time that is left, and what it leaves the next ones have; its
    plan and its outlook, of `outlooks` if there are any, share that part. Raises ConfigError that
    names the model which cannot be served, and KeyboardInterrupt for an interrupt before each has a
    plan.
    """
    for _, question in questions:  # before the first search: all of them have to fit
        with _naming(question):
            question.sweep.tasks()
    ends_s = time.monotonic() + questions[0][1].search.budget_s
    found: list[MixedModel] = []
    asked = outlooks or [NOTHING_ASKED] * len(questions)
    for (share, question), outlook in zip(questions, asked, strict=True):
        if is_interrupted():
            raise KeyboardInterrupt
        begun_s = time.monotonic()
        part_s = max(ends_s - begun_s, _LEAST_S) / (len(questions) - len(found))
        timed = replace(question, search=replace(question.search, budget_s=part_s))
        name = question.sweep.model.name

        def say(line: str, name: str = name) -> None:
            progress(f"{name}: {line}")

        with _naming(question):
            of_model = plan(outlook.leaves_time(timed), workers=workers, progress=say)
        ahead = NO_OUTLOOK
        if not is_interrupted():
            ahead = outlook_of(
                of_model, outlook, workers=workers, progress=say, ends_s=begun_s + part_s
            )
        found.append(MixedModel(share=share, plan=of_model, outlook=ahead))
    return ModelMix.of(found)


@contextmanager
def _naming(question: PlanQuestion) -> Iterator[None]:
    """Within it a ConfigError has the model's name."""
    try:
        yield
    except ConfigError as error:
        name = question.sweep.model.name
        raise ConfigError(f"{name}: {error.field}", error.value, error.expected) from error


def _packing(models: Sequence[MixedModel], counts: Sequence[int]) -> tuple[PackedMachines, ...]:
    fleets = [each.plan.fleet for each in models]
    sizes = [fleet.replica_chips for fleet in fleets]
    most = [each.most_of_machine for each in models]
    return packed(sizes, counts, room=fleets[0].system.chips.count, most=most)


def _machines(packing: Sequence[PackedMachines]) -> int:
    return sum(each.machines for each in packing)


def _sum(rates: Sequence[TokenRates]) -> TokenRates:
    return TokenRates(
        output_tokens_per_s=sum(each.output_tokens_per_s for each in rates),
        input_tokens_per_s=sum(each.input_tokens_per_s for each in rates),
    )
