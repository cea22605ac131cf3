"""deploy/gateway says what the tests of a gateway do."""

import re
import shlex
from pathlib import Path

from serving.commands.gateway_arguments import console_port
from serving.commands.serve_arguments import resolve_arguments
from tests.e2e.gateway_process import FLAGS, VARIABLE
from tests.serving.commands.serve_flags import parse

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "deploy/gateway/README.md").read_text(encoding="utf-8")


def commands(program: str) -> list[list[str]]:
    """The words of every command of the guide that runs `program`, without it."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)).replace("\\\n", " ")
    return [
        shlex.split(line.partition(program)[2]) for line in blocks.splitlines() if program in line
    ]


def test_the_gateway_is_started_as_the_tests_start_it() -> None:
    (words,) = commands("smg launch")

    assert all(flag in words for flag in FLAGS)
    assert [words[words.index(flag) + 1] for flag in FLAGS[::2]] == list(FLAGS[1::2])
    assert VARIABLE in GUIDE


def test_the_guide_s_engines_have_the_ports_that_the_gateway_is_told_of() -> None:
    (words,) = commands("smg launch")
    told = {word for word in words if word.startswith("grpc://")}

    asked = [parse(*words) for words in commands("ultraserve serve")]

    assert len(asked) == 4
    assert {f"grpc://{each.host}:{each.grpc_port}" for each in asked} == told
    settings = [resolve_arguments(each, {})[0] for each in asked]
    assert [each.ultraserver for each in settings] == ["0", "0", "a", "b"]
    for pair in (asked[:2], asked[2:]):
        ports = [
            port
            for each in pair
            for port in (each.port, each.grpc_port, each.control_port, console_port(each))
        ]
        assert len(set(ports)) == len(ports)
