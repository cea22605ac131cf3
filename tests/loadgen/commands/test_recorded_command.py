"""The command that reports keep: what it leaves out, and that it does again what was done."""

import argparse
import shlex
from dataclasses import replace

import pytest

from loadgen.commands import run_command, sweep_command
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.recorded_command import recorded_command, recorded_command_of_point
from loadgen.commands.run_arguments import run_options
from loadgen.runs.options import RunOptions
from loadgen.workloads.traffic_class_spec import given_classes

LENGTHS = ("--input", "64", "--output", "16")


def run_of(command: str) -> RunOptions:
    """The options that a kept command has."""
    parser = OneLineParser(prog="ultraserve-loadgen")
    run = run_command.add(parser.add_subparsers(dest="command"))
    program, *words = shlex.split(command)
    assert (program, words[0]) == ("ultraserve-loadgen", "run")
    return run_options(parser.parse_args(words), parser=run)


def point_of(
    words: list[str], *, load: float, position: int, repeat: int
) -> tuple[str, RunOptions]:
    """The command of one run of a sweep, and what the sweep asked for there."""
    parser = OneLineParser(prog="ultraserve-loadgen")
    sweep = sweep_command.add(parser.add_subparsers(dest="command"))
    given: argparse.Namespace = parser.parse_args(words)
    options = sweep_command.sweep_options(given, parser=sweep)
    asked = options.at(load, position=position, repeat=repeat)
    return recorded_command_of_point(words, given_classes(given), asked, vary=options.vary), asked


def test_what_a_run_wrote_is_left_out() -> None:
    words = ["run", "--rate", "2", "--results", "r.jsonl", "--json=r.json", "--csv-requests", "q"]

    assert recorded_command(words) == "ultraserve-loadgen run --rate 2"
    assert recorded_command(["sweep", "--dir", "d", "--rates", "1"]) == (
        "ultraserve-loadgen sweep --rates 1"
    )


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("Authorization: Bearer hush", "Authorization:@AUTHORIZATION"),
        ("x-api-key:hush", "x-api-key:@X_API_KEY"),
        ("Cookie: a=hush", "Cookie:@COOKIE"),
        ("X-Auth-Token:hush", "X-Auth-Token:@X_AUTH_TOKEN"),
        ("Authorization:@MINE", "Authorization:@MINE"),
        ("X-Tenant: seven", "X-Tenant: seven"),
    ],
)
@pytest.mark.parametrize("spelling", ["--header {}", "--header={}"])
def test_a_secret_header_is_kept_as_the_variable_to_read_it_from(
    header: str, kept: str, spelling: str
) -> None:
    def typed(value: str) -> list[str]:
        return ["run", *(word.format(value) for word in spelling.split())]

    assert recorded_command(typed(header)) == shlex.join(["ultraserve-loadgen", *typed(kept)])


@pytest.mark.parametrize("spelling", ["--traffic-class {}", "--traffic-class={}"])
def test_a_secret_header_of_a_class_is_kept_as_its_variable(spelling: str) -> None:
    def typed(spec: str) -> list[str]:
        return ["run", *(word.format(spec) for word in spelling.split())]

    assert recorded_command(typed("a 'header=X-Api-Key: hush' rate=3")) == shlex.join(
        ["ultraserve-loadgen", *typed("a header=X-Api-Key:@X_API_KEY rate=3")]
    )


def test_a_header_that_was_kept_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("X_API_KEY", "hush")
    words = ["run", "--rate", "1", "--header", "X-Api-Key: hush"]
    (each,) = run_of(recorded_command(words)).classes

    assert each.headers == {"X-Api-Key": "hush"}


@pytest.mark.parametrize("repeat", [0, 2])
@pytest.mark.parametrize(
    "words",
    [
        ["--rates", "20,40", *LENGTHS, "--seed", "5"],
        ["--rates=20,40", *LENGTHS, "--duration", "100ms", "--seed=5", "--slo", "ttft=1s"],
        ["--concurrencies", "20-40x2", "--requests", "30", "--precision", "10%", "--json", "x"],
        ["--max-rate", "20", "--requests", "30", "--arrivals", "gamma", "--burstiness", "0.3"],
        [
            *("--concurrencies", "20", *LENGTHS, "--requests", "30", "--vary", "a", "--dir", "d"),
            *("--traffic-class", "a api=chat 'header=X-A: b c'"),
            "--traffic-class=b rate=3 requests=7",
        ],
        ["--rates", "20", *LENGTHS, "--duration", "7s", "--traffic-class", "a duration=9s"],
    ],
)
def test_a_run_of_a_sweep_is_repeated_by_a_run(words: list[str], repeat: int) -> None:
    command, asked = point_of(["sweep", *words], load=20, position=3, repeat=repeat)

    assert run_of(command) == replace(asked, results=None)
