"""A system's watts from its chips' watts: hosts, trays, switches, fans, pumps, conversion, cooling.

Each part is linear between its idle share with idle chips and its full watts with chips at their
budget (assumed: hosts and network cards work when the chips do). So a rack's input is linear in its
chips' watts, and its crossing of the rack's budget is exact. A system without `RackPowerSpec` has
one constant overhead, the rest of its provisioned power.
"""

from dataclasses import dataclass, fields
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.rack_power import Cooling, RackPowerSpec, Season
from emulator.specs.system import SystemSpec

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilityWatts:
    """Watts of some chips of a system by part; the parts sum to `total_watts`.

    `overhead_watts` stands for hosts to conversion where not known separately. `provisioned_watts`
    is the chips' share of the racks' budget, which holds `it_watts`.
    """

    chip_watts: float
    cpu_watts: float
    tray_watts: float
    switch_watts: float
    fan_watts: float
    pump_watts: float
    conversion_watts: float
    overhead_watts: float
    cooling_watts: float
    provisioned_watts: float

    def parts(self) -> tuple[tuple[str, float], ...]:
        """Watts of every part by name, chips first, cooling last."""
        return tuple((name, getattr(self, name)) for name in _PARTS)

    @property
    def total_watts(self) -> float:
        """At the utility's meter."""
        return self.it_watts + self.cooling_watts

    @property
    def it_watts(self) -> float:
        """At the racks' input."""
        return sum(watts for _, watts in self.parts()[:-1])


PART_LABELS: Final = {
    "chip_watts": "chips",
    "cpu_watts": "host CPUs",
    "tray_watts": "trays",
    "switch_watts": "switches",
    "fan_watts": "fans",
    "pump_watts": "pumps",
    "conversion_watts": "conversion",
    "overhead_watts": "beside the chips",
    "cooling_watts": "cooling",
}
"""Each part's name for a reader."""

_PARTS: Final = tuple(
    each.name for each in fields(FacilityWatts) if each.name != "provisioned_watts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boards:
    """Watts behind the conversion, except chips."""

    cpus: float
    trays: float
    switches: float
    fans: float
    pumps: float

    def total(self) -> float:
        return self.cpus + self.trays + self.switches + self.fans + self.pumps


class SystemPower:
    """The power of one system; ConfigError for a rack over its budget with idle chips."""

    def __init__(self, system: SystemSpec) -> None:
        self.system = system
        self._power = system.power
        self._idle = system.chip.idle_watts.value
        self._budget = system.chip.budget_watts.value
        self._racks = system.racks.count * system.units
        self.rack_budget_watts = system.provisioned_watts.value / self._racks
        if self._rack_line(self._idle) > self.rack_budget_watts * (1 + _ROUNDING):
            raise ConfigError(
                f"{system.name}.provisioned_watts",
                system.provisioned_watts.value,
                f"at least {self._racks * self._rack_line(self._idle):,.0f}, what its "
                "racks draw with idle chips",
            )

    def pue(self, season: Season = Season.PEAK) -> float:
        """Facility watts per IT watt; the peak's all year round where seasons are unknown."""
        overhead = self.system.pue.value - 1
        return 1 + overhead * (self._power.overhead_in(season).value if self._power else 1.0)

    def facility_watts(
        self, chip_watts_sum: float, *, chips: int, season: Season = Season.PEAK
    ) -> FacilityWatts:
        """The site's watts for `chips` chips that draw `chip_watts_sum` together.

        Hosts, switches and pumps count by the chips' share of the system. Raises ConfigError for
        more chips than there are, or negative watts.
        """
        total = self.system.chips.count
        if not 1 <= chips <= total:
            raise ConfigError("chips", chips, f"1 to {total}")
        if not chip_watts_sum >= 0:
            raise ConfigError("chip_watts_sum", chip_watts_sum, "at least 0")
        each = chip_watts_sum / chips
        boards, conversion, overhead = self._parts(each)
        it_watts = chip_watts_sum + chips * (boards.total() + conversion + overhead)
        return FacilityWatts(
            chip_watts=chip_watts_sum,
            cpu_watts=chips * boards.cpus,
            tray_watts=chips * boards.trays,
            switch_watts=chips * boards.switches,
            fan_watts=chips * boards.fans,
            pump_watts=chips * boards.pumps,
            conversion_watts=chips * conversion,
            overhead_watts=chips * overhead,
            cooling_watts=it_watts * (self.pue(season) - 1),
            provisioned_watts=self.provisioned_watts(chips),
        )

    def provisioned_watts(self, chips: int) -> float:
        """The share of `chips` chips in the racks' budget; no PUE."""
        return self.system.provisioned_watts.value * chips / self.system.chips.count

    def all_in_watts(self, chips: int) -> tuple[float, bool]:
        """Utility watts planned for `chips` chips, and whether that is published (by InferenceX).

        Otherwise the provisioned watts at the peak's PUE.
        """
        published = self.system.all_in_watts_per_chip
        if published is not None:
            return published.value * chips, True
        return self.provisioned_watts(chips) * self.pue(Season.PEAK), False

    @property
    def chip_cap_watts(self) -> float:
        """Limit of each chip when all chips of its rack draw the same; at most its budget."""
        low, high = self._rack_line(self._idle), self._rack_line(self._budget)
        if high <= self.rack_budget_watts:
            return self._budget
        within = (self.rack_budget_watts - low) / (high - low)
        return self._idle + within * (self._budget - self._idle)

    def _rack_line(self, each_watts: float) -> float:
        boards, conversion, overhead = self._parts(each_watts)
        per_chip = each_watts + boards.total() + conversion + overhead
        return per_chip * self.system.chips.count / self._racks

    def _parts(self, each_watts: float) -> tuple[_Boards, float, float]:
        """Per chip that draws `each_watts`: boards, conversion loss, unsplit overhead."""
        power = self._power
        if power is None:
            nothing = _Boards(cpus=0, trays=0, switches=0, fans=0, pumps=0)
            return nothing, 0.0, self.system.overhead_watts_per_chip.value
        boards = self._boards(power, each_watts)
        behind = each_watts + boards.total()
        return boards, behind / power.conversion_efficiency.value - behind, 0.0

    def _boards(self, power: RackPowerSpec, each_watts: float) -> _Boards:
        chips = self.system.chips.count
        units = self.system.units
        span = self._budget - self._idle
        load = min(max((each_watts - self._idle) / span, 0.0), 1.0) if span else 1.0

        def drawn(full_watts: float, idle_share: float) -> float:
            return full_watts / chips * (idle_share + (1 - idle_share) * load)

        cpus = drawn(power.cpu_watts.value * self.system.cpus.value, power.cpu_idle_share.value)
        trays = drawn(power.tray_watts.value * units, power.tray_idle_share.value)
        switches = drawn(power.switch_watts.value * units, power.switch_idle_share.value)
        on_plates = 0.0 if power.cooling is Cooling.AIR else each_watts + cpus + switches
        in_air = each_watts + cpus + trays + switches - on_plates
        return _Boards(
            cpus=cpus,
            trays=trays,
            switches=switches,
            fans=power.fan_share.value * in_air,
            pumps=power.pump_watts.value * units / chips,
        )
