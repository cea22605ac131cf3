"""Sessions of `ultraserve plan` and `compare`, from their arguments to the demand."""

import argparse
import json

import pytest

from emulator.errors import UltraServeError
from loadgen.errors import LoadError
from serving.analysis.plan.plan_demand import RateDemand
from serving.analysis.plan.session_demand import SessionDemand
from serving.commands.plan import question_of
from serving.main import command_parser, main

pytestmark = pytest.mark.long

PLAN = (
    *("--model", "qwen3-30b-a3b", "--rate", "5", "--input", "300", "--output", "20"),
    *("--slo", "ttft=300ms,tpot=20ms"),
)
AGENT = ("--turns", "4", "--think", "5s", "--shared-prefix", "700", "--history", "served")


def parsed(*arguments: str, command: str = "plan") -> argparse.Namespace:
    args = command_parser(command).parse_args([command, *PLAN, *arguments])
    args.words = [command, *PLAN, *arguments]
    return args


def test_sessions_are_said_in_the_words_of_simulate() -> None:
    asked = question_of(parsed(*AGENT))
    demand = asked.demand
    assert isinstance(demand, SessionDemand)

    assert demand.sessions_per_s == 5
    assert demand.peak_rate_per_s == 20
    assert demand.in_words() == (
        "5 sessions/s, Poisson, of 4 requests in mean; a shared system prompt of 700 tokens before "
        "each session; turns 4; 5 s to think between calls; new tokens of each request 300, "
        "replies of 20"
    )
    # The mean step of the steady state has what is not cached: 300 new tokens of each turn.
    assert asked.sweep.shape.computed_tokens == pytest.approx(300, abs=3)
    assert asked.sweep.shape.common_tokens == pytest.approx(700, abs=3)
    assert isinstance(question_of(parsed()).demand, RateDemand)


def test_what_is_not_cached_is_computed() -> None:
    whole = question_of(parsed(*AGENT, "--no-prefix-caching"))

    assert whole.demand.prefixes is None
    # 700, then 300 and 20 more a turn: 1,000, 1,320, 1,640, 1,960.
    assert whole.sweep.shape.computed_tokens == 1_480


@pytest.mark.slow
def test_compare_plans_the_same_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--chips", "1", "--requests", "30", "--tries", "1", "--prefill-policy", "none")
    sessions = ("--turns", "2", "--think", "200ms", "--shared-prefix", "700")
    systems = ("--systems", "dgx-h200", "--no-pools", "--processes", "1", "--json")

    assert main(["compare", *PLAN, *sessions, *small, *systems]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "5 sessions/s, Poisson, of 2 requests in mean" in json.dumps(found)
    (one,) = found["systems"]
    assert one["check"]["run"]["hit_share"] > 0.3


def test_prompts_that_only_share_need_no_limit_of_what_none_waits_for() -> None:
    for words in (("--shared-prefix", "700"), ("--long-context", "5%:700")):
        asked = question_of(parsed(*words, "--slo", "ttft=1s"))
        assert asked.demand.ramp_s == 0
        assert asked.demand.peak_rate_per_s == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--turns", "4", "--fan-out", "2x1"), "--fan-out"),
        (("--think", "5s"), "--think"),
        (("--turns", "4", "--traffic-class", "a rate=1"), "turns=4: expected nothing beside"),
        (("--turns", "4", "--slo", "ttft=1s"), "limits of TTFT and TPOT"),
        (("--turns", "4", "--surge", "30%"), "surge=30%: expected nothing beside sessions"),
        (("--turns", "4", "--cold-start"), "cold-start=True: expected nothing beside sessions"),
    ],
)
def test_what_sessions_cannot_be_planned_with_is_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    args = parsed(*arguments)
    with pytest.raises((UltraServeError, LoadError)) as refused:
        args.run(args)

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
