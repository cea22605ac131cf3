"""What a machine's figures are, and what several machines come to together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.replicas.replica_figures import ReplicaFigures, machine_figures, sum_of


def report(*, tokens: int, window_s: float, watts: float) -> pb.GetHardwareResponse:
    response = pb.GetHardwareResponse()
    snapshot = response.report
    snapshot.faults_open = 2
    snapshot.telemetry.chips, snapshot.telemetry.chips_up = 4, 3
    snapshot.telemetry.ranks, snapshot.telemetry.ranks_up = 2, 1
    window = snapshot.power.window
    window.emulated_s, window.output_tokens = window_s, tokens
    output = tokens / window_s / watts * 1e6
    window.tokens_per_megawatt.add(basis="drawn", watts=watts, output=output)
    return response


def test_a_machine_s_figures_are_its_report_s() -> None:
    figures = machine_figures(report(tokens=500, window_s=5.0, watts=400.0))

    assert (figures.chips_up, figures.ranks_up, figures.faults_open) == (3, 1, 2)
    assert figures.output_tokens_per_s == 100.0
    assert figures.output_per_s_per_mw == {"drawn": 250_000.0}


def test_before_its_first_window_a_machine_has_made_nothing() -> None:
    figures = machine_figures(pb.GetHardwareResponse())

    assert figures.output_tokens_per_s == 0.0
    assert sum_of([figures]).output_per_s_per_mw == {}


def test_tokens_per_megawatt_of_all_are_all_tokens_over_all_megawatts() -> None:
    busy = machine_figures(report(tokens=500, window_s=5.0, watts=400.0))
    idle = machine_figures(report(tokens=0, window_s=2.5, watts=100.0))
    whole = sum_of([busy, idle])

    assert whole.output_per_s_per_mw == {"drawn": pytest.approx(100.0 / 500.0 * 1e6)}
    assert (whole.chips, whole.chips_up, whole.faults_open) == (8, 6, 4)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.1, 5.0), st.floats(1.0, 1e6)), min_size=1)
)
def test_the_whole_lies_between_the_best_and_the_worst(
    machines: list[tuple[int, float, float]],
) -> None:
    each = [machine_figures(report(tokens=t, window_s=s, watts=w)) for t, s, w in machines]
    whole = sum_of(each).output_per_s_per_mw["drawn"]
    ratios = [one.output_per_s_per_mw["drawn"] for one in each]

    assert min(ratios) * (1 - 1e-9) <= whole <= max(ratios) * (1 + 1e-9)
    assert sum_of([*each, ReplicaFigures()]) == sum_of(each)
