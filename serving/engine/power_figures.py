"""Power and energy of a running engine, for the control service."""

from collections import defaultdict

from msgspec import convert

from emulator.power.efficiency import TokenRates, tokens_per_megawatt
from emulator.power.system_power import SystemPower
from serving.engine.token_meter import TokenTotals
from serving.wire.machine_state import MachineState
from serving.wire.power_report import (
    ChipPower,
    MachinePower,
    PowerWindow,
    RackPower,
    TokensPerMegawatt,
)
from serving.wire.telemetry import Telemetry, with_figures


def machine_power(
    power: SystemPower, state: MachineState, telemetry: Telemetry, window: TokenTotals | None
) -> MachinePower:
    """Power at the moment of `state` and `telemetry`; spares draw idle power and their share."""
    chips = state.partition.chips + state.partition.spares
    facility = power.facility_watts(telemetry.chip_watts, chips=chips)
    return with_figures(
        MachinePower,
        telemetry,
        it_watts=facility.it_watts,
        parts_watts=dict(facility.parts()),
        chip_budget_watts=power.system.chip.budget_watts.value,
        pue=power.pue(),
        chips=tuple(ChipPower(chip=chip.chip, watts=chip.watts) for chip in state.chips),
        racks=_racks(power, state),
        window=None if window is None else _window(power, window, chips),
    )


def _racks(power: SystemPower, state: MachineState) -> tuple[RackPower, ...]:
    watts: dict[int, list[float]] = defaultdict(list)
    for chip in state.chips:
        watts[chip.rack].append(chip.watts)
    racks = []
    for rack, each in sorted(watts.items()):
        facility = power.facility_watts(sum(each), chips=len(each))
        racks.append(
            RackPower(
                rack=rack,
                chips=len(each),
                chip_watts=facility.chip_watts,
                it_watts=facility.it_watts,
                provisioned_watts=facility.provisioned_watts,
            )
        )
    return tuple(racks)


def _window(power: SystemPower, window: TokenTotals, chips: int) -> PowerWindow:
    rates = TokenRates(
        output_tokens_per_s=window.output_tokens / window.emulated_s,
        input_tokens_per_s=window.prompt_tokens / window.emulated_s,
    )
    drawn_watts = window.facility_joules / window.emulated_s
    return PowerWindow(
        emulated_s=window.emulated_s,
        prompt_tokens=window.prompt_tokens,
        output_tokens=window.output_tokens,
        facility_joules=window.facility_joules,
        tokens_per_megawatt=tuple(
            convert(each, TokensPerMegawatt, from_attributes=True)
            for each in tokens_per_megawatt(power, rates, chips=chips, drawn_watts=drawn_watts)
        ),
    )
