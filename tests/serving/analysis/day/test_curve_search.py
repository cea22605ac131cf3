"""The search for a replica's capacity: what it finds is kept for minutes."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.analysis.day.curve_search import find_curve
from serving.analysis.day.replica_run import RateTask, run_at_rate, saturated_per_s
from serving.analysis.day.virtual_day import chosen
from serving.commands import day as command
from serving.simulator.simulation_workers import THIS_PROCESS
from tests.serving.commands.small_day import SMALL_DAY, lengths, parsed


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--slo", "ttft=1s,tpot=30ms@p99", "--max-num-seqs", "1024", "--requests", "600"), ()],
)
def test_a_capacity_is_kept_for_minutes_and_below_what_begins_at_an_overload(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    # A rate is bracketed by requests of 3 to 6 tokens that arrive in half a minute or less, in
    # which a queue that grows by a hundredth of the rate is not yet as long as the limit of TTFT.
    asked = (*SMALL_DAY, *options, "--lengths", str(lengths(tmp_path)))
    settings = command.settings_of(parsed(*asked))
    choice, replica = chosen(settings)
    curve = find_curve(replica, choice.guess, settings.curve, THIS_PROCESS)

    at = RateTask(
        replica=replica, rate_per_s=curve.capacity_per_s, judged=100_000, lead_s=15.0, seed=7
    )
    assert run_at_rate(at).both_share >= settings.curve.required_share
    above = replace(at, rate_per_s=1.05 * at.rate_per_s)
    assert run_at_rate(above).both_share < settings.curve.required_share
    assert at.rate_per_s < curve.saturated_per_s
    assert at.rate_per_s < saturated_per_s(replace(at, rate_per_s=2 * at.rate_per_s))
