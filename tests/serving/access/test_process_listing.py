"""What other users see of a server's command line once it has read its keys."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from serving.access.process_listing import hide_in_process_list
hide_in_process_list(flags=("--api-key",), variables=("VLLM_API_KEY", "OTHER_KEY"))
print(sys.argv[1:], os.environ["VLLM_API_KEY"], os.environ["LAST"], flush=True)
sys.stdin.readline()
"""


def shown(*arguments: str) -> tuple[list[str], list[str], str]:
    """The words of the command line, the environment's, and what the program still knows."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            "VLLM_API_KEY": "of the environment",
            "VLLM_API_KEY_NOT": "kept",
            "OTHER_KEY": "two=three",
            "LAST": "here",
        },
    ) as process:
        assert process.stdout is not None
        knows = process.stdout.readline()
        status = Path(f"/proc/{process.pid}")
        command = (status / "cmdline").read_text().split("\0")[3:-1]
        environment = (status / "environ").read_text().split("\0")[:-1]
        process.communicate("\n")
    return command, environment, knows


@pytest.mark.process
def test_keys_are_shown_as_stars_and_everything_else_as_it_is() -> None:
    arguments = ["serve", "--api-key", "first", "second", "--port", "1", "--api_key=third", "m"]
    command, environment, knows = shown(*arguments)

    assert command == [
        *("serve", "--api-key", "*****", "******", "--port", "1", "--api_key=*****", "m"),
    ]
    stars = "*" * len("of the environment")
    assert environment == [
        *(f"VLLM_API_KEY={stars}", "VLLM_API_KEY_NOT=kept", "OTHER_KEY=*********", "LAST=here")
    ]
    assert knows == f"{arguments} of the environment here\n"


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [[], ["--api-key"], ["--api-key", ""], ["--api-keys", "f"], ["", "-", "é"]]
)
def test_what_holds_no_key_is_left(arguments: list[str]) -> None:
    assert shown(*arguments)[0] == arguments
