"""What is printed where nobody reads, or where nothing more fits; and what a command imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loadgen.known_server import KnownServer

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


def ended(words: list[str], stdout: int) -> tuple[int, str]:
    """The exit code of a process and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", *words],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def ended_unread(words: list[str]) -> tuple[int, str]:
    """The same, where who would read has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        return ended(words, writes)
    finally:
        os.close(writes)


def ended_full(words: list[str]) -> tuple[int, str]:
    """The same, on a disk that is full."""
    with Path("/dev/full").open("wb") as full:
        return ended(words, full.fileno())


def test_files_are_written_though_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with KnownServer(ttft_s=(0.001, 0.002), itl_s=(0.0005, 0.001)).serving() as server:
        words = ["run", "--url", server.url, "--requests", "3", "--concurrency", "3", "--quiet"]
        words += ["--max-input-tokens", "40", "--max-output-tokens", "4", "--json", str(path)]
        unread = ended_unread([*words, "--results", str(tmp_path / "r.jsonl")])

    assert unread == (141, "")
    assert json.loads(path.read_text())["completed_requests"] == 3
    code, err = ended_full(["report", str(tmp_path / "r.jsonl"), "--csv", str(tmp_path / "r.csv")])
    assert (code, (tmp_path / "r.csv").stat().st_size > 100) == (2, True)
    assert err == (
        "ultraserve-loadgen: standard output cannot be written (No space left on device)\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"]])
def test_help_that_nobody_reads_ends_quietly(words: list[str]) -> None:
    assert ended_unread(words) == (141, "")
    assert ended_full(words)[0] == 2


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [([], {"numpy", "aiohttp", "rich"}), (["report", "--help"], {"altair", "aiohttp", "grpc"})],
)
def test_what_a_command_does_not_need_is_not_imported(words: list[str], unwanted: set[str]) -> None:
    program = (
        "import sys, contextlib, io\n"
        "import loadgen.main\n"
        f"words = {words!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    loadgen.main.main(words) if words else None\n"
        f"print(sorted({unwanted!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
