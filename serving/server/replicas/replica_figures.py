"""What one replica's machine does now, in a few figures, and the same of all replicas. Pure."""

from collections.abc import Sequence
from functools import reduce
from typing import Final

import msgspec

from protos.ultraserve.v1 import control_pb2 as pb

_WATTS_PER_MEGAWATT: Final = 10**6


class ReplicaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and watts are means of the last emulated seconds.

    Attributes:
        basis_watts: by what tokens are divided: provisioned, drawn, all-in; empty before the first
            seconds have passed.
        output_per_s_per_mw: output tokens a second and megawatt, by basis.
    """

    chips: int = 0
    chips_up: int = 0
    ranks: int = 0
    ranks_up: int = 0
    faults_open: int = 0
    requests_running: int = 0
    requests_waiting: int = 0
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    chip_watts: float = 0.0
    facility_watts: float = 0.0
    basis_watts: dict[str, float] = {}
    output_per_s_per_mw: dict[str, float] = {}


def machine_figures(response: pb.GetHardwareResponse) -> ReplicaFigures:
    """The figures in what a server answers."""
    snapshot = response.report
    telemetry, power = snapshot.telemetry, snapshot.power
    window_s = power.window.emulated_s
    per_s = 1.0 / window_s if window_s else 0.0
    return ReplicaFigures(
        chips=telemetry.chips,
        chips_up=telemetry.chips_up,
        ranks=telemetry.ranks,
        ranks_up=telemetry.ranks_up,
        faults_open=snapshot.faults_open,
        requests_running=telemetry.requests_running,
        requests_waiting=telemetry.requests_waiting,
        prompt_tokens_per_s=power.window.prompt_tokens * per_s,
        output_tokens_per_s=power.window.output_tokens * per_s,
        chip_watts=telemetry.chip_watts,
        facility_watts=telemetry.facility_watts,
        basis_watts={each.basis: each.watts for each in power.window.tokens_per_megawatt},
        output_per_s_per_mw={each.basis: each.output for each in power.window.tokens_per_megawatt},
    )


def sum_of(replicas: Sequence[ReplicaFigures]) -> ReplicaFigures:
    """All replicas' figures: sums, and the sum of tokens over the sum of watts."""
    whole = reduce(_added, replicas, ReplicaFigures())
    per_mw = {
        basis: whole.output_tokens_per_s / watts * _WATTS_PER_MEGAWATT
        for basis, watts in whole.basis_watts.items()
        if watts
    }
    return msgspec.structs.replace(whole, output_per_s_per_mw=per_mw)


def _added(one: ReplicaFigures, other: ReplicaFigures) -> ReplicaFigures:
    both = {
        name: getattr(one, name) + getattr(other, name)
        for name in ReplicaFigures.__struct_fields__
        if name not in ("basis_watts", "output_per_s_per_mw")
    }
    watts = {
        basis: one.basis_watts.get(basis, 0.0) + other.basis_watts.get(basis, 0.0)
        for basis in {**one.basis_watts, **other.basis_watts}
    }
    return ReplicaFigures(**both, basis_watts=watts)
