"""The words of `ultraserve simulate` mean what they mean to the load generator."""

import argparse
import asyncio
import json
from pathlib import Path

import pytest

from loadgen.commands import run_command
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.run_arguments import run_options
from loadgen.errors import OptionError
from loadgen.runs.class_plan import ClassPlan, plan_class
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.class_draft import class_seeds, draft_class
from loadgen.workloads.trace_file import BUNDLED_TRACE
from serving.commands.simulated_traffic import (
    SimulatedTraffic,
    SimulatedTrafficOptions,
    add_traffic_arguments,
    simulated_traffic,
)
from startup.typed_options import add_options, read_options

CONTEXT_TOKENS = 1_000_000


def simulated(*words: str, context_tokens: int = CONTEXT_TOKENS) -> SimulatedTraffic:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, SimulatedTrafficOptions)
    add_traffic_arguments(parser)
    args = parser.parse_args(words)
    options = read_options(SimulatedTrafficOptions, args)
    return simulated_traffic(args, options, context_tokens=context_tokens)


def live(*words: str) -> list[ClassPlan]:
    """The classes that `ultraserve-loadgen run` sends."""
    parser = OneLineParser(prog="ultraserve-loadgen")
    run = run_command.add(parser.add_subparsers(dest="command"))
    given = parser.parse_args(["run", "--prompts", "text", *words])
    options = run_options(given, parser=run)
    seeds = class_seeds(options.seed, len(options.classes))
    return [
        asyncio.run(
            plan_class(
                each,
                draft_class(each.workload, each.arrivals, seed=seed),
                tokenizer=WordTokenizer(),
                recount=0,
            )
        )
        for each, seed in zip(options.classes, seeds, strict=True)
    ]


Sent = tuple[float, int, int, frozenset[int]]


def sent(plans: list[ClassPlan]) -> list[Sent]:
    """When each session is due, each request's tokens, and the turns of it that it waits for."""
    found: list[Sent] = []
    for plan in plans:
        for number in range(plan.sessions):
            due_ns = plan.pacer.pace(elapsed_ns=0, sent=number, in_flight=0)
            assert due_ns is not None
            due_s = due_ns / 1e9 + plan.options.arrivals.start_s
            for call in plan.workload.session(number).calls:
                request = call.request
                before = frozenset(call.after)
                found.append((due_s, request.input_tokens, request.output_tokens, before))
    return sorted(found, key=lambda each: each[0])


def taken(made: SimulatedTraffic) -> list[Sent]:
    traffic = made.traffic
    waits: list[set[int]] = [set() for _ in range(len(traffic))]
    if traffic.sessions is not None:
        for request, other in zip(*traffic.sessions.waits, strict=True):
            waits[request].add(other - traffic.sessions.heads[request])
    return [
        (*each, frozenset(before))
        for *each, before in zip(
            traffic.arrival_s.tolist(),
            traffic.prompt_tokens.tolist(),
            traffic.output_tokens.tolist(),
            waits,
            strict=True,
        )
    ]


def test_classes_have_their_priorities() -> None:
    made = simulated(
        *("--input", "9", "--output", "3", "--rate", "9", "--requests", "20"),
        *("--traffic-class", "chat", "--traffic-class", "batch priority=2"),
    )
    assert made.traffic.priority is not None
    assert made.traffic.priority.tolist() == (2 * made.of_class).tolist()
    assert "priority 2" in made.classes[1].workload
    assert simulated("--rate", "9").traffic.priority is None


LENGTHS = ("--input", "lognormal:90,60", "--output", "uniform:2-30")


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        (*LENGTHS, "--rate", "20", "--requests", "40", "--seed", "3"),
        (*LENGTHS, "--rate", "20", "--burstiness", "0.25", "--requests", "40"),
        (*LENGTHS, "--rate", "20", "--arrivals", "constant", "--duration", "2s", "--start", "1s"),
        (*LENGTHS, "--rate", "sine:20,15,1s", "--duration", "3s"),
        (*LENGTHS, "--rate", "ramp:1-40/2s", "--requests", "30"),
        (*LENGTHS, "--rate", "series:0s=5,1s=50,2s=5"),
        (*LENGTHS, "--rate", "9", "--requests", "12", "--turns", "uniform:1-4", "--think", "2s"),
        (*LENGTHS, "--rate", "9", "--requests", "5", "--fan-out", "3x2", "--think", "1s"),
        (*LENGTHS, "--rate", "9", "--requests", "20", "--shared-prefix", "64x3"),
        (*LENGTHS, "--rate", "9", "--requests", "20", "--long-context", "20%:900"),
        (*LENGTHS, "--rate", "9", "--requests", "30", "--max-input-tokens", "100"),
        ("--trace", str(BUNDLED_TRACE), "--requests", "60"),
        ("--trace", str(BUNDLED_TRACE), "--speedup", "4", "--window", "10s-40s"),
        ("--trace", str(BUNDLED_TRACE), "--rate", "5", "--requests", "40", "--output", "7"),
        (
            *(*LENGTHS, "--seed", "5", "--traffic-class", "chat rate=4 requests=9 turns=2"),
            *("--traffic-class", "batch rate=7 requests=20 output=300"),
        ),
    ],
    ids=lambda words: " ".join(words[-4:]),
)
def test_a_seed_makes_the_requests_that_the_load_generator_sends(words: tuple[str, ...]) -> None:
    expected = sent(live(*words))

    assert len(expected) > 8
    assert taken(simulated(*words)) == expected


def test_what_is_not_said_is_600_requests_of_1024_tokens() -> None:
    made = simulated("--rate", "5")

    assert len(made.traffic) == 600
    assert set(made.traffic.prompt_tokens) == set(made.traffic.output_tokens) == {1_024}
    (only,) = made.classes
    assert (only.name, only.slo) == ("default", None)
    assert only.arrivals.words == "Poisson, 5 per emulated s"


def test_a_closed_loop_has_its_concurrency() -> None:
    made = simulated("--concurrency", "7", "--requests", "20")

    assert len(made.traffic) == 20
    assert made.traffic.loops is not None
    assert made.traffic.loops.pacers[0].concurrency.rates_per_s == (7.0,)


def test_each_class_has_a_target_of_its_own_or_that_of_all(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text('[chat]\nrate = 4\nslo = "ttft=200ms@p99"\n\n[batch]\nrate = 2\noutput = 9\n')
    made = simulated("--classes", str(path), "--requests", "5", "--slo", "tpot=30ms@p90")

    assert [each.name for each in made.classes] == ["chat", "batch"]
    assert [each.slo and each.slo.words for each in made.classes] == [
        "ttft=200ms@p99",
        "tpot=30ms@p90",
    ]
    batch = made.of_class == 1
    assert set(made.traffic.output_tokens[batch]) == {9}
    assert set(made.traffic.output_tokens[~batch]) == {1_024}


def test_recorded_conversations_are_counted_with_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    talk = [
        ("human", "why is that"),
        ("gpt", "because"),
        ("human", "and then"),
        ("gpt", "ah"),
    ]
    messages = [{"from": who, "value": text} for who, text in talk]
    path.write_text(json.dumps([{"conversations": messages}]))
    words = ("--trace", str(path), "--rate", "1", "--think", "3s")
    made = simulated(*words, "--tokenizer", "words")

    assert taken(made) == sent(live(*words))
    assert made.traffic.prompt_tokens.tolist() == [3, 3 + 1 + 2]
    with pytest.raises(
        OptionError, match=r"^--tokenizer=None: expected a tokenizer\.json, its fol"
    ):
        simulated(*words)


def test_what_a_server_would_refuse_is_left_out_with_its_later_turns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--rate", "5", "--requests", "10", "--input", "100", "--output", "10", "--turns", "4")
    made = simulated(*words, context_tokens=350)

    # Turns of 110, 220, 330 and 440 tokens with their replies.
    assert len(made.traffic) == 30
    assert "10 requests longer than the context left out" in capsys.readouterr().err
