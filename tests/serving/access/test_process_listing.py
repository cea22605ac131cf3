"""What other users see of a server's command line once it has read its keys."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from serving.access.process_listing import hide_in_process_list
hide_in_process_list(flags=("--api-key",))
print(sys.argv[1:], flush=True)
sys.stdin.readline()
"""


def shown(*arguments: str) -> tuple[bytes, str]:
    """The command line as the system shows it, and what the program still knows."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        knows = process.stdout.readline()
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.communicate("\n")
    return command, knows


def test_keys_are_shown_as_stars_and_everything_else_as_it_is() -> None:
    arguments = ["serve", "--api-key", "first", "second", "--port", "1", "--api_key=third", "m"]
    command, knows = shown(*arguments)

    words = shlex.split(command.rstrip(b"\0").decode())
    assert words[0] == sys.executable
    assert words[-8:] == [
        *("serve", "--api-key", "*****", "******", "--port", "1", "--api_key=*****", "m"),
    ]
    assert knows == f"{arguments}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--api-key"], ["--api-key", ""], ["--api-keys", "f"], ["", "-", "é"]]
)
def test_what_holds_no_key_is_left(arguments: list[str]) -> None:
    words = shown(*arguments)[0].decode().split("\0")[:-1]

    assert words[3:] == arguments
