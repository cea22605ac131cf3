"""What the picture shows, read from the specification that it is drawn from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.specs.systems import SYSTEMS
from serving.analysis.pareto.pareto import Pareto, pareto
from serving.analysis.pareto.pareto_chart import pareto_chart
from serving.analysis.pareto.pareto_claims import BASE_SYSTEM, NEW_SYSTEM, Finding, findings
from serving.analysis.steady_state.envelope import Interval
from serving.analysis.steady_state.partitions import PartitionFilter
from tests.serving.analysis.steady_state.small_machines import small_sweep

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def claimed() -> Pareto:
    """The two machines of the vendor's claims, with a few partitions each."""
    few = PartitionFilter(tp=(1, 2), ep=(4, 8), lnc=(2,))
    sweeps = tuple(
        small_sweep(system=SYSTEMS[name], asked=few, precisions=("fp8",), batches=(1, 8, 64))
        for name in (BASE_SYSTEM, NEW_SYSTEM)
    )
    return pareto(sweeps)


def panels_of(shown: Pareto) -> list[dict[str, Any]]:
    """The specification's panels, with each layer's rows in it."""
    drawn = pareto_chart(shown).to_dict()
    for panel in drawn["vconcat"]:
        for layer in panel["layer"]:
            held = layer.get("data") or panel["data"]
            layer["rows"] = drawn["datasets"][held["name"]] if "name" in held else held["values"]
    panels: list[dict[str, Any]] = drawn["vconcat"]
    return panels


def test_all_panels_have_the_same_range_of_interactivity(claimed) -> None:
    curves, ratios, _ = panels_of(claimed)

    domains = {
        tuple(layer["encoding"]["x"]["scale"]["domain"])
        for panel in (curves, ratios)
        for layer in panel["layer"]
        if "scale" in layer["encoding"].get("x", {})
    }

    assert len(domains) == 1
    low, high = domains.pop()
    for machine in claimed.machines:
        assert low < machine.envelope.x[0]
        assert machine.envelope.reach < high


def test_axes_have_names_with_units_and_machines_colours_of_their_own(claimed) -> None:
    curves, ratios, _ = panels_of(claimed)
    encoding = curves["layer"][-1]["encoding"]

    assert encoding["x"]["title"] == "interactivity: output tokens/s per user"
    assert encoding["y"]["title"] == "output tokens/s per MW of the racks' budget"
    assert encoding["color"]["scale"]["domain"] == [BASE_SYSTEM, NEW_SYSTEM]
    assert len(set(encoding["color"]["scale"]["range"])) == 2
    assert ratios["layer"][1]["encoding"]["y"]["title"][-1] == f"of {BASE_SYSTEM}"


def test_marked_points_lie_on_the_line_of_their_machine(claimed) -> None:
    curves = panels_of(claimed)[0]
    marked = curves["layer"][-1]["rows"]

    for machine in claimed.machines:
        own = [row for row in marked if row["system"] == machine.name]
        assert own
        for row in own:
            line = machine.envelope.at(np.array(row["tokens/s/user"] * (1 - 1e-4)))
            assert row["tokens/s/MW"] >= float(line) * 0.99


def test_the_claim_s_range_is_shaded_and_every_answer_is_written(claimed) -> None:
    found = findings(claimed.machines[0].curves, claimed.machines[1].curves)
    reached = (Interval(low=50.0, high=80.0), Interval(low=90.0, high=95.0))
    headline: Finding = replace(found[0], agrees=True, reached=reached)

    curves, ratios, answers = panels_of(replace(claimed, vendor_findings=(headline, *found[1:])))

    for panel in (curves, ratios):
        spans = panel["layer"][0]["rows"]
        assert [(span["tokens/s/user"], span["to"]) for span in spans] == [(50, 80), (90, 95)]
    written = answers["layer"][0]["rows"]
    answers_in_words = [each.in_words() for each in (headline, *found[1:])]
    assert [row["answer"] for row in written] == answers_in_words


def test_one_machine_has_no_ratios_and_no_claims() -> None:
    alone = pareto((small_sweep(),))

    assert len(panels_of(alone)) == 1
