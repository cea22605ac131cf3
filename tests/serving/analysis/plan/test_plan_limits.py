"""Batch limits that a plan tries where a setting is near the target."""

from dataclasses import replace

import pytest

from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_options import best_options
from serving.analysis.plan.plan_pools import partitions_of
from serving.analysis.plan.plan_race import NO_POLICY, Race, option_terms
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import THIS_PROCESS
from serving.traffic.engine_limits import BatchLimits
from tests.serving.analysis.plan.planned import CHECK, SWEEP, question

WIDE = BatchLimits(max_num_seqs=60, max_num_batched_tokens=2_048)
FEW_TOKENS = BatchLimits(max_num_seqs=64, max_num_batched_tokens=320)
ONE_SEAT = BatchLimits(max_num_seqs=1, max_num_batched_tokens=2_048)
ASKED = question(
    sweep=replace(SWEEP, asked=PartitionFilter(chips=(2,), lnc=(2,))),
    slo=Slo.parse("ttft=400ms,tpot=8ms@p90"),
    check=replace(CHECK, judged=60),
    search=replace(
        question().search, policies=NO_POLICY, other_limits=(WIDE, FEW_TOKENS, ONE_SEAT)
    ),
)


@pytest.fixture(scope="module")
def race() -> Race:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    found = partitions_of(option_terms(ASKED), ASKED.sweep.tasks(), pools=False)
    option = best_options(each.option for each in found)[0]
    race.run([Setting(option=option, policy="none", replicas=6)])
    return race


@pytest.mark.long
def test_only_what_the_limits_change_is_raced(race: Race) -> None:
    (own,) = race.checks
    race.run_under_other_limits()
    tried = {setting.limits for setting in race.checks}

    # Fewer than 60 requests are at once on a rank, so that the first limits change nothing; one at
    # a time cannot take the load by the steady state.
    assert tried == {None, FEW_TOKENS}
    limited = next(each for each in race.checks if each.limits == FEW_TOKENS)
    assert (limited.policy, limited.replicas) == (own.policy, own.replicas)
    assert limited.option.candidate == own.option.candidate
    assert "max-num-seqs 64, max-num-batched-tokens 320" in limited.words


@pytest.mark.long
def test_what_was_tried_is_not_tried_again(race: Race) -> None:
    race.run_under_other_limits()
    before = dict(race.checks)

    assert not race.run_under_other_limits()
    assert race.checks == before


def test_a_setting_is_simulated_under_its_limits(race: Race) -> None:
    race.run_under_other_limits()
    for setting, check in race.checks.items():
        expected = setting.limits or ASKED.check.schedulers.batch
        assert check.limits == expected
        assert race.task(setting, judged=60).terms.schedulers.batch == expected


def test_the_steady_state_is_asked_under_the_limits() -> None:
    own, limited = option_terms(ASKED), option_terms(ASKED, ONE_SEAT)

    assert (own.seats, limited.seats) == (64, 1)
    assert option_terms(ASKED, FEW_TOKENS).sweep.shape.batched_tokens_max == 320
    assert replace(limited, seats=64) == replace(own, sweep=limited.sweep)
