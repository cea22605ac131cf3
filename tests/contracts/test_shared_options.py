"""An option of one name means one thing in every command, the load tool's too."""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module

from loadgen.commands.one_line_parser import OneLineParser
from loadgen.main import COMMANDS
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT, REQUESTS, SEED
from serving.commands.renamed_flags import OLD_LENGTHS, RENAMED, RENAMED_IN, SPREAD
from serving.main import command_parser
from serving.traffic.engine_limits import (
    HBM_SHARE,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    PLANNED_LIMITS,
)

PREDICTING = (
    *("plan", "compare", "pareto", "day", "profile", "simulate"),
    *("explain step", "explain point", "explain row", "explain server"),
)
LOAD_TOOL = ("loadgen run", "loadgen sweep")
PLANNING = ("plan", "compare", "pareto", "day")

_SWEPT = "one partition, or the partitions to try"
DIFFERENT = {
    **dict.fromkeys(("--chips", "--tp", "--ep", "--lnc", "--attention-split"), _SWEPT),
    **dict.fromkeys(
        ("--max-num-seqs", "--max-num-batched-tokens"), "of a server, or of what is to be planned"
    ),
    "--prefill-policy": "one, or those to try",
    "--group-chips": "a group of a day is a replica without it",
    "--model": "a plan takes several, with shares",
    "--systems": "a comparison of systems has all, a curve needs its first",
    "--trace": "a day has a built-in one",
    "--slo": "a day has one, a plan is asked for one, a simulation goes without",
    "--rate": "a profile has one, because without --model it records a server",
    "--requests": "a trace brings its own",
    "--budget": "of one system, or of several together",
    "--timeout": "of a server's answer, or of the requests' client",
    "--json": "a profile has the one of commands that ask a server",
}
"""Names that two predictions share, with another form or default, and why."""


def parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    """Every option below `parser`, by the command that has it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, sub in action.choices.items():
                yield from parsers(sub, f"{name} {below}".strip())
        elif action.option_strings:
            yield name, action


def load_tool() -> OneLineParser:
    parser = OneLineParser(prog="loadgen")
    commands = parser.add_subparsers()
    for name in COMMANDS:
        import_module(f"loadgen.commands.{name}_command").add(commands)
    return parser


OPTIONS = [*parsers(command_parser(), ""), *parsers(load_tool(), "loadgen")]


def options_of(flag: str, *commands: str) -> dict[str, argparse.Action]:
    """The option in each of `commands` that has it; in all without names."""
    return {
        name: action
        for name, action in OPTIONS
        if flag in action.option_strings and (not commands or name in commands)
    }


def help_of(action: argparse.Action) -> str:
    assert action.help is not None
    return action.help


def test_old_names_are_no_options_of_the_commands_that_had_them() -> None:
    flags = defaultdict(set)
    for name, action in OPTIONS:
        for word in {name, name.partition(" ")[0]}:
            flags[word] |= set(action.option_strings)
    for each in flags.values():
        assert not set(RENAMED) & each
    for command, renamed in RENAMED_IN.items():
        assert not set(renamed) & flags[command], command
        assert set(renamed.values()) <= flags[command], command
    for command, old in OLD_LENGTHS.items():
        assert not {*old.flags, SPREAD} & flags[command], command
        assert {"--input", "--output"} <= flags[command], command
    assert set(RENAMED.values()) <= set.union(*flags.values())


def test_lengths_are_typed_alike_and_their_default_is_printed() -> None:
    for flag, default in (("--input", INPUT), ("--output", OUTPUT)):
        found = options_of(flag)
        assert {*PREDICTING[:6], *LOAD_TOOL, "serve"} <= set(found)
        assert {action.metavar for action in found.values()} == {"LENGTHS"}
        said = {name: help_of(action) for name, action in found.items()}
        assert len({said[name] for name in (*PREDICTING[:6], *LOAD_TOOL)}) == 1
        for name in set(found) - {"explain step"}:
            assert f"{default})" in said[name], name


def test_requests_and_seeds_have_one_default_everywhere() -> None:
    for name in ("plan", "compare", "day", "profile"):
        (requests,) = options_of("--requests", name).values()
        assert f"(default: {REQUESTS})" in help_of(requests)
    for name in ("simulate", *LOAD_TOOL):
        (requests,) = options_of("--requests", name).values()
        assert f"sweeps: {REQUESTS})" in help_of(requests)
    for name, action in options_of("--seed").items():
        assert help_of(action).endswith(f"(default: {SEED})"), name


def test_limits_have_vllm_s_names_and_the_defaults_of_a_server_or_of_a_plan() -> None:
    served = {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS}
    of_command = dict.fromkeys(("simulate", "profile"), served)
    for name, limits in (of_command | dict.fromkeys(PLANNING, PLANNED_LIMITS)).items():
        for field, value in limits.items():
            flag = f"--{field.replace('_', '-')}"
            found = options_of(flag, name)
            assert found or (name, flag) == ("pareto", "--max-num-seqs")
            for action in found.values():
                assert f"(default: {value:,})" in help_of(action), (name, flag)


def test_the_share_of_hbm_is_one_everywhere() -> None:
    found = options_of("--gpu-memory-utilization")

    assert {"plan", "compare", "pareto", "day", "explain step"} <= set(found)
    assert {action.default for action in found.values()} == {HBM_SHARE}


def test_json_is_printed_alone_and_written_with_a_file() -> None:
    for name in (*PLANNING, "simulate", *PREDICTING[6:]):
        (action,) = options_of("--json", name).values()
        assert (action.nargs, action.const) == ("?", "-"), name


def test_a_shared_name_has_one_form_and_one_default_in_all_predictions() -> None:
    by_flag: dict[str, list[argparse.Action]] = defaultdict(list)
    for name, action in OPTIONS:
        if name in (*PLANNING, "simulate", "profile"):
            by_flag[action.option_strings[0]].append(action)
    different = {
        flag
        for flag, found in by_flag.items()
        if len({(action.metavar, action.nargs) for action in found}) > 1
        or len({printed_default(action) for action in found}) > 1
    }

    assert different == set(DIFFERENT)


def printed_default(action: argparse.Action) -> str:
    """The help's words about the default; empty without any."""
    _, found, default = help_of(action).rpartition("(default: ")
    return default if found else ""
