"""Watts of each catalog system beside its chips, by the system's name, and PUE by cooling.

NVIDIA's power manager gives a GB200 tray, its CPUs and GPUs, idle and busy; a measured DGX H100
checks the boxes. The rest is counted from parts: where the sum exceeds the rack's budget, the
budget throttles the chips, and no part is shrunk to hide it.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.rack_power import Cooling, RackPowerSpec, Season

_DPS: Final = "NVIDIA Domain Power Service docs, device specifications"
_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"
_AWS_PUE: Final = "AWS's mean PUE is 1.15, its best site's 1.04 (sustainability report, 2024)"
_SERDES: Final = "5 pJ/bit"  # a PCIe 6 or NVLink lane and its share of the crossbar
_BIT_J: Final = 5e-12


AIR_PUE: Final = Figure(
    1.2, "facility W per IT W", f"{_SEMIANALYSIS}: peak of an air-optimised site, about 1.2"
)
LIQUID_PUE: Final = Figure(
    1.5,
    "facility W per IT W",
    f"{_SEMIANALYSIS}: peak of a central-loop liquid-cooled site, about 1.5",
)


def _watts(value: float, source: str) -> Figure:
    return Figure(value, "W", source)


def _share(value: float, source: str) -> Figure:
    return Figure(value, "share", source)


_SEASON_OVERHEAD: Final = (
    (Season.PEAK, _share(1.0, "by definition: the design day")),
    (
        Season.SUMMER,
        _share(0.875, "assumed: half-way between the design day and the mean of the year"),
    ),
    (
        Season.SPRING_AUTUMN,
        _share(
            0.75, f"assumed: the mean of the year over the 1.2 of an air-cooled peak; {_AWS_PUE}"
        ),
    ),
    (
        Season.WINTER,
        _share(0.475, f"assumed: half-way between the mean and the coolest site; {_AWS_PUE}"),
    ),
)

_X86_IDLE: Final = _share(
    0.3, "assumed: a two-socket server with its memory idles at about 30 % of its full power"
)
_TRAY_IDLE: Final = _share(
    0.7, "assumed: optics, retimers and network cards run at one clock whatever they carry"
)
_SWITCH_IDLE: Final = _share(0.8, "assumed: lanes are always on; only the crossbar follows traffic")
_AIR_FANS: Final = _share(
    0.12, "arithmetic: 11 % of a busy server's power are fans (Intel, IDF 2009), 0.11 / 0.89"
)
_NO_FANS: Final = _share(0.0, "counted in the trays: their 6,667 W hold their fans")
_NO_PUMPS: Final = _watts(0, "none: cooled by air")
_NO_SWITCHES: Final = _watts(0, "none: chips are joined by direct links")
_SUPPLY: Final = _share(
    0.96, "80 PLUS Titanium: 96 % at half load, where redundant supplies run; assumed for all loads"
)
_SHELF: Final = _share(
    0.975, "OCP Open Rack V3 rectifier: 97.5 % at its best; assumed for all loads"
)
_XEON: Final = _watts(
    480, "arithmetic: 350 W (Intel Xeon 8480C, 8570 or 8488C) + 1 TiB of DDR5, assumed 130 W"
)


def _pumps(heat_watts: float) -> Figure:
    return _watts(
        0.0075 * heat_watts,
        f"assumed: 1.5 l/min per kW against 1.5 bar by pumps of 50 %: 7.5 W per kW, for "
        f"{heat_watts / 1e3:,.0f} kW",
    )


def _air_box(
    *, cpu: Figure, tray: Figure, switches: Figure, supply: Figure = _SUPPLY
) -> RackPowerSpec:
    return RackPowerSpec(
        cooling=Cooling.AIR,
        cpu_watts=cpu,
        cpu_idle_share=_X86_IDLE,
        tray_watts=tray,
        tray_idle_share=_TRAY_IDLE,
        switch_watts=switches,
        switch_idle_share=_SWITCH_IDLE,
        fan_share=_AIR_FANS,
        pump_watts=_NO_PUMPS,
        conversion_efficiency=supply,
        season_overhead=_SEASON_OVERHEAD,
    )


_HOPPER_BOX: Final = _air_box(
    cpu=_XEON,
    tray=_watts(
        600,
        "assumed: 10 ConnectX-7 at 25 W, 10 NVMe disks at 12 W, 4 PCIe switches at 30 W, "
        "management 110 W",
    ),
    switches=_watts(
        4 * 25.6e12 * _BIT_J,
        f"assumed: 4 NVSwitches x 25.6 Tb/s x {_SERDES}; about the 120 W that is said of one",
    ),
)
_BLACKWELL_BOX: Final = _air_box(
    cpu=_XEON,
    tray=_watts(
        700,
        "assumed: 8 ConnectX-7 at 25 W, 2 BlueField-3 at 75 W, 10 NVMe disks at 12 W, 4 PCIe "
        "switches at 30 W, management 110 W",
    ),
    switches=_watts(2 * 57.6e12 * _BIT_J, f"assumed: 2 NVSwitches x 57.6 Tb/s x {_SERDES}"),
)
_EPYC: Final = _watts(480, "arithmetic: 360 W (AMD EPYC 9654) + 1.15 TB of DDR5, assumed 120 W")
_AMD_TRAY: Final = _watts(
    600,
    "assumed: 8 network cards of 400 Gb/s at 25 W, 8 retimers at 12 W, 10 NVMe disks at 12 W, PCIe "
    "switches and management 184 W",
)
_MI300_BOX: Final = _air_box(cpu=_EPYC, tray=_AMD_TRAY, switches=_NO_SWITCHES)
_MI355_BOX: Final = replace(
    _MI300_BOX,
    cooling=Cooling.LIQUID,
    cpu_watts=_watts(520, "arithmetic: 400 W (AMD EPYC 9575F) + 1.15 TB of DDR5, assumed 120 W"),
    pump_watts=_pumps(12_240),
)


def _nvl72(heat_watts: float) -> RackPowerSpec:
    """18 compute trays with 2 Graces each, 9 switch trays."""
    return RackPowerSpec(
        cooling=Cooling.LIQUID,
        cpu_watts=_watts(420, f"{_DPS}: Grace, at most 420 W"),
        cpu_idle_share=_share(50 / 420, f"{_DPS}: Grace, at least 50 W"),
        tray_watts=_watts(
            18 * (6_667 - 4 * 1_200 - 2 * 420),
            f"arithmetic: 18 trays x (6,667 W - 4 GPUs x 1,200 W - 2 Graces x 420 W), {_DPS}, "
            "GB200",
        ),
        tray_idle_share=_share(
            100 / 1_027,
            f"arithmetic: 1,000 W idle - 4 GPUs x 200 W - 2 Graces x 50 W, of 1,027 W, {_DPS}",
        ),
        switch_watts=_watts(
            9 * 800,
            "assumed: 2 NVSwitches x 57.6 Tb/s x 5 pJ/bit a tray, its management and regulators; "
            "the rest of a GB200 rack's 132 kW leaves at most 840 W a tray",
        ),
        switch_idle_share=_SWITCH_IDLE,
        fan_share=_NO_FANS,
        pump_watts=_pumps(heat_watts),
        conversion_efficiency=_SHELF,
        season_overhead=_SEASON_OVERHEAD,
    )


_TRN3_NL72X2: Final = RackPowerSpec(
    cooling=Cooling.LIQUID,
    cpu_watts=_watts(
        230,
        "assumed: AWS publishes none; Graviton4, 96 Neoverse V2 cores at 1.4 W, as Grace has, and "
        f"12 DIMMs ({_SEMIANALYSIS}) at 8 W",
    ),
    cpu_idle_share=_share(50 / 420, f"as Grace, which has the same cores: {_DPS}"),
    tray_watts=_watts(
        36 * 270,
        f"assumed: 36 trays x (2 EFA cards at 40 W, 1 front-end card at 40 W, 6 retimers at 12 W, "
        f"2 gearboxes at 10 W, 2 disks at 12 W, management 34 W), counts from {_SEMIANALYSIS}",
    ),
    tray_idle_share=_TRAY_IDLE,
    switch_watts=_watts(
        2 * (40 * 160 + 144 * 32) * 128e9 * _BIT_J,
        f"assumed: 2 racks x (40 switches of 160 lanes + 144 of 32) x 128 Gb/s both ways x "
        f"{_SERDES}; counts from {_SEMIANALYSIS}, first generation of switches",
    ),
    switch_idle_share=_SWITCH_IDLE,
    fan_share=_AIR_FANS,
    pump_watts=_pumps(163_339),
    conversion_efficiency=_SHELF,
    season_overhead=_SEASON_OVERHEAD,
)
_TRN3_NL32X2: Final = _air_box(
    cpu=_XEON,
    tray=_watts(
        32 * 110,
        "assumed: 32 trays of 2 chips x (1 EFA card at 40 W, 4 retimers at 12 W, management 22 W), "
        f"counts from {_SEMIANALYSIS}",
    ),
    switches=_watts(
        2 * 16 * 160 * 128e9 * _BIT_J,
        f"assumed: 2 racks x 16 switches of 160 lanes x 128 Gb/s both ways x {_SERDES}; counts "
        f"from {_SEMIANALYSIS}, first generation of switches",
    ),
    supply=_SHELF,
)


def _trn2(servers: int) -> RackPowerSpec:
    return _air_box(
        cpu=_XEON,
        tray=_watts(
            servers * 560,
            f"assumed: {servers} x (16 EFA cards of 200 Gb/s at 20 W, 16 retimers at 10 W, 4 disks "
            "at 12 W, management 32 W)",
        ),
        switches=_NO_SWITCHES,
        supply=_SHELF,
    )


_TRN1: Final = _air_box(
    cpu=_watts(340, "arithmetic: 300 W (Intel Xeon 8375C) + 256 GiB of DDR4, assumed 40 W"),
    tray=_watts(
        350, "assumed: 8 EFA cards of 100 Gb/s at 20 W, 4 disks at 12 W, PCIe switches 142 W"
    ),
    switches=_NO_SWITCHES,
)
_INF2: Final = _air_box(
    cpu=_watts(340, "arithmetic: 280 W (AMD EPYC 7R13) + 384 GiB of DDR4, assumed 60 W"),
    tray=_watts(200, "assumed: one card of 100 Gb/s at 40 W, PCIe switches and management 160 W"),
    switches=_NO_SWITCHES,
)

RACK_POWERS: Final = MappingProxyType(
    {
        "inf2.48xlarge": _INF2,
        "trn1.32xlarge": _TRN1,
        "trn2.48xlarge": _trn2(1),
        "trn2-ultraserver": _trn2(4),
        "trn3-nl32x2": _TRN3_NL32X2,
        "trn3-nl72x2": _TRN3_NL72X2,
        "dgx-h100": _HOPPER_BOX,
        "dgx-h200": _HOPPER_BOX,
        "dgx-h800": _HOPPER_BOX,
        "dgx-b200": _BLACKWELL_BOX,
        "dgx-b300": _BLACKWELL_BOX,
        "gb200-nvl72": _nvl72(132_000),
        "gb300-nvl72": _nvl72(142_000),
        "mi300x-8": _MI300_BOX,
        "mi325x-8": _MI300_BOX,
        "mi355x-8": _MI355_BOX,
    }
)


def rack_power_of(system_name: str) -> RackPowerSpec | None:
    """The system's watts beside its chips; None where they are not counted."""
    return RACK_POWERS.get(system_name)
